"""Our layer in a process of its own: `python -m benchmarks.cpu_kernels.layer_arm FORMAT`

Prints {"seconds": {rows: median of a call}}. A call is what a router without workers does: gate, plan, experts, merge.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from functools import partial

import numpy as np

from colibri.cli.kernel_bench.weights import FORMATS, copies, expert, random_rows
from colibri.expert_service.execute import run_units
from colibri.kernels.api import F32, ComputeMode, PackedExpert
from colibri.kernels.cpu.backend import CpuBackend
from colibri.kernels.reference.floats import to_bf16
from colibri.placement import Directory, Membership, spread
from colibri.router_service.executor import LocalExecutor
from colibri.router_service.router import MoeRouter

HIDDEN, FFN, EXPERTS, TOP_K = 2048, 7168, 8, 2
#: Rows -> calls, with rows that differ from call to call.
CALLS = {1: 41, 8: 21, 64: 11, 512: 5}


def rows_of(count: int, index: int) -> F32:
    """fp32 [count, HIDDEN], as benchmarks/peers/hf_moe_layer.py draws them."""
    draw = np.random.Generator(np.random.SFC64([count, index]))
    return draw.standard_normal((count, HIDDEN), dtype=np.float32)


class Held:
    """All experts of the one layer."""

    def __init__(self, packed: list[PackedExpert]) -> None:
        self._packed = packed

    def get(self, layer: int, expert: int) -> PackedExpert:
        return self._packed[expert]


def main() -> None:
    kind = next(each for each in FORMATS if each.name == sys.argv[1])
    backend = CpuBackend(2)
    held = Held(copies(expert(backend, HIDDEN, FFN, kind), 0, least=EXPERTS))
    gate = backend.pack_linear(random_rows((EXPERTS, HIDDEN), "bf16", 11), ComputeMode.FP32)
    directory = Directory(Membership(spread(1, EXPERTS, ["local"]), {}))
    executor = LocalExecutor(partial(run_units, backend, held))
    router = MoeRouter(backend, ComputeMode.BF16, [gate], TOP_K, directory, executor)
    seconds = {}
    for count, calls in CALLS.items():
        inputs = [to_bf16(rows_of(count, index)) for index in range(calls + 1)]
        router.forward(0, inputs[-1])
        found = []
        for x in inputs[:-1]:
            start = time.perf_counter()
            router.forward(0, x)
            found.append(time.perf_counter() - start)
        seconds[count] = statistics.median(found)
    executor.close()
    backend.close()
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
