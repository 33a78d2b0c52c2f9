"""Our gate from logits in a process of its own: `python -m benchmarks.cpu_kernels.gate_arm EXPERTS ...`

Prints {"seconds": {experts: median of a call over 4096 rows}}: top-2 with weights, from Python, two threads.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import numpy as np

from colibri.kernels.cpu.backend import CpuBackend, huge_bytes

#: As many calls as take tens of milliseconds, as torch's 31 do: the first few milliseconds of a process are slower.
ROWS, CALLS = 4096, 601


def main() -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    backend = CpuBackend(2, cpus=cpus)
    os.sched_setaffinity(0, cpus[:1])  # pinned, as a deployment's processes are
    seconds = {}
    for experts in map(int, sys.argv[1:]):
        logits = huge_bytes(ROWS * experts * 4).view(np.float32).reshape(ROWS, experts)
        logits[:] = np.random.Generator(np.random.SFC64(experts)).standard_normal(
            (ROWS, experts), dtype=np.float32
        )
        for _ in range(CALLS):
            backend.top_k(logits, 2)
        found = []
        for _ in range(CALLS):
            start = time.perf_counter()
            backend.top_k(logits, 2)
            found.append(time.perf_counter() - start)
        seconds[experts] = statistics.median(found)
    backend.close()
    print(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()
