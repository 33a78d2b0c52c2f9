"""Our layer in a process of its own: `python -m benchmarks.cpu_kernels.layer_arm FORMAT`

Prints {"seconds": {rows: median of a call}, "of_roof": {rows: share}}. A call is what a router without workers does:
gate, plan, experts, merge. Its roof is the longer of a plain read of the experts that it used, right behind it, and of
their multiply-adds at the instruction's peak.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from functools import partial

import numpy as np

from colibri.bench.kernels.timing import limits
from colibri.bench.kernels.weights import FORMATS, copies, expert, random_rows
from colibri.expert_service.execute import run_units
from colibri.kernels.api import F32, ComputeMode, PackedExpert
from colibri.kernels.arithmetic.floats import to_bf16
from colibri.kernels.cpu.backend import CpuBackend
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
    peak = limits(backend)[kind.peak(backend.isa)]
    seconds, of_roof = {}, {}
    for count, calls in CALLS.items():
        inputs = [to_bf16(rows_of(count, index)) for index in range(calls + 1)]
        router.forward(0, inputs[-1])
        least = 2.0 * count * TOP_K * 3 * HIDDEN * FFN / peak
        found, shares = [], []
        for x in inputs[:-1]:
            start = time.perf_counter()
            router.forward(0, x)
            took = time.perf_counter() - start
            used = sorted(set(router.gate(0, x).experts.ravel().tolist()))
            start = time.perf_counter()
            for number in used:
                backend.read_pass(held.get(0, number).data)
            shares.append(max(time.perf_counter() - start, least) / took)
            found.append(took)
        seconds[count], of_roof[count] = statistics.median(found), statistics.median(shares)
    executor.close()
    backend.close()
    print(json.dumps({"seconds": seconds, "of_roof": of_roof}))


if __name__ == "__main__":
    main()
