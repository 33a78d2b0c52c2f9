"""int4 experts on their way to the card: as they are (--int4-on gpu), or dequantised by the CPU (--int4-on cpu).

`python -m benchmarks.cuda.int4_timing` measures the CPU's half alone, on any machine: the whole expert of Mixtral-8x7B,
by one thread and by all, into memory of the size of a part of the ring."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from colibri.kernels.api import PackedExpert
from colibri.kernels.cuda.cupy_device import CupyDevice
from colibri.kernels.cuda.expanding import Expansion
from colibri.kernels.cuda.staging import StagingRing

Measure = Callable[[], tuple[str, dict[str, Any]]]
_PART = 14 << 20
_TIMES = 5


def lines(device: CupyDevice, expert: PackedExpert, ring_bytes: int) -> dict[str, Measure]:
    """By name. The time of either way is the copy's below and that of its FFN: int4's or bf16's."""
    ring = StagingRing(device, ring_bytes)
    threads = len(os.sched_getaffinity(0))
    return {
        "int4 expert to the card as it is": partial(_copied, device, ring, expert),
        "int4 expert dequantised by the CPU to the card": partial(_expanded, device, ring, expert, threads),
        "int4 expert dequantised by the CPU, not copied": partial(dequantised, expert, threads),
    }


def dequantised(expert: PackedExpert, threads: int) -> tuple[str, dict[str, Any]]:
    """The CPU's half: into one part of a ring after the other. ImportError without the native module."""
    expand = _expansion(expert, threads)
    out = np.ones(_PART, dtype=np.uint8)

    def run() -> None:
        for start in range(0, expand.nbytes, _PART):
            expand.write(expert.data, start, out[: min(_PART, expand.nbytes - start)])

    return _told(run, expert.data.nbytes, expand.nbytes, f", {threads} threads")


def _copied(device: CupyDevice, ring: StagingRing, expert: PackedExpert) -> tuple[str, dict[str, Any]]:
    target = device.empty(expert.data.nbytes)

    def run() -> None:
        event = ring.copy(target, expert.data, None)
        if event is not None:
            event.wait()

    return _told(run, expert.data.nbytes, expert.data.nbytes, "")


def _expanded(
    device: CupyDevice, ring: StagingRing, expert: PackedExpert, threads: int
) -> tuple[str, dict[str, Any]]:
    expand = _expansion(expert, threads)
    target = device.empty(expand.nbytes)

    def run() -> None:
        event = ring.fill(target, expand.nbytes, partial(expand.write, expert.data), None)
        if event is not None:
            event.wait()

    return _told(run, expert.data.nbytes, expand.nbytes, f", {threads} threads")


def _expansion(expert: PackedExpert, threads: int) -> Expansion:
    from colibri.kernels.cpu.backend import CpuBackend  # not on a machine that only has the sources

    return Expansion(CpuBackend(threads), expert)


def _told(run: Callable[[], None], read: int, written: int, more: str) -> tuple[str, dict[str, Any]]:
    seconds = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    best = min(seconds)
    return (
        f"{best * 1e3:.1f} ms, {read / best / 1e9:.2f} GB/s read, {written / best / 1e9:.2f} GB/s written{more}",
        {"seconds": best, "read_bytes": read, "written_bytes": written},
    )


def main() -> None:
    from benchmarks.cuda.timings import FFN, HIDDEN, random_expert

    expert = random_expert("int4", 0)
    print(f"hidden {HIDDEN}, ffn {FFN}, {expert.data.nbytes} bytes")
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        print(dequantised(expert, threads)[0])


if __name__ == "__main__":
    main()
