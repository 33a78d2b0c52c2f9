"""int4 experts on their way to the card: as they are (--int4-on gpu), or dequantised by the CPU (--int4-on cpu).

`python -m benchmarks.cuda.int4_timing` measures the CPU's half alone, on any machine: the whole expert of Mixtral-8x7B,
by one thread and by all, into memory of the size of a ring, in turn with a plain copy of as many bytes."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from colibri.kernels.api import PackedExpert
from colibri.kernels.cuda.cupy_device import CupyDevice
from colibri.kernels.cuda.expanding import Bytes, Expansion
from colibri.kernels.cuda.staging import PARTS, StagingRing
from colibri.kernels.layout.aligned import aligned_bytes

Measure = Callable[[], tuple[str, dict[str, Any]]]
_PART = 14 << 20  # of a ring of 64 MiB, the default
_TIMES = 15


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
    run = _into_ring(partial(expand.write, expert.data), expand.nbytes)
    return _told(_seconds(run)[0], expert.data.nbytes, expand.nbytes, f", {threads} threads")


def beside_a_copy(expert: PackedExpert, threads: int, isa: str) -> str:
    """That, in turn with a plain copy of as many bytes as it writes, by as many threads, to the same places."""
    expand = _expansion(expert, threads, isa)
    plain = np.ones(expand.nbytes, dtype=np.uint8)
    with ThreadPoolExecutor(threads) as pool:

        def copy(start: int, out: Bytes) -> None:
            bounds = [len(out) * at // threads for at in range(threads + 1)]
            list(pool.map(lambda a, b: np.copyto(out[a:b], plain[start + a : start + b]), bounds, bounds[1:]))

        ours, copies = _seconds(
            _into_ring(partial(expand.write, expert.data), expand.nbytes), _into_ring(copy, expand.nbytes)
        )
    told, _ = _told(ours, expert.data.nbytes, expand.nbytes, "")
    copied, _ = _told(copies, expand.nbytes, expand.nbytes, "")
    ratio = statistics.median(copies) / statistics.median(ours)
    return f"{isa}, {threads} threads: {told}; plain copy: {copied}; {ratio:.2f} times as fast as the copy"


def _into_ring(write: Callable[[int, Bytes], None], nbytes: int) -> Callable[[], None]:
    """write(start, out) for all of nbytes, as a ring of the default size has it done."""
    memory = aligned_bytes(PARTS * _PART)
    memory[:] = 1  # pages that are there

    def run() -> None:
        for index, start in enumerate(range(0, nbytes, _PART)):
            at = index % PARTS * _PART
            write(start, memory[at : at + min(_PART, nbytes - start)])

    return run


def _copied(device: CupyDevice, ring: StagingRing, expert: PackedExpert) -> tuple[str, dict[str, Any]]:
    target = device.empty(expert.data.nbytes)

    def run() -> None:
        event = ring.copy(target, expert.data, None)
        if event is not None:
            event.wait()

    return _told(_seconds(run)[0], expert.data.nbytes, expert.data.nbytes, "")


def _expanded(
    device: CupyDevice, ring: StagingRing, expert: PackedExpert, threads: int
) -> tuple[str, dict[str, Any]]:
    expand = _expansion(expert, threads)
    target = device.empty(expand.nbytes)

    def run() -> None:
        event = ring.fill(target, expand.nbytes, partial(expand.write, expert.data), None)
        if event is not None:
            event.wait()

    return _told(_seconds(run)[0], expert.data.nbytes, expand.nbytes, f", {threads} threads")


def _expansion(expert: PackedExpert, threads: int, isa: str = "auto") -> Expansion:
    from colibri.kernels.cpu.backend import CpuBackend  # not on a machine that only has the sources

    return Expansion(CpuBackend(threads, isa=isa), expert)


def _seconds(*runs: Callable[[], None]) -> list[list[float]]:
    """Of each, in turn, after one turn that is not counted."""
    seconds: list[list[float]] = [[] for _ in runs]
    for turn in range(_TIMES + 1):
        for run, found in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run()
            if turn:
                found.append(time.perf_counter() - start)
    return seconds


def _told(seconds: list[float], read: int, written: int, more: str) -> tuple[str, dict[str, Any]]:
    middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
    return (
        f"{middle * 1e3:.1f} ms ({least * 1e3:.1f} to {most * 1e3:.1f}), {read / middle / 1e9:.2f} GB/s read, "
        f"{written / middle / 1e9:.2f} GB/s written{more}",
        {"seconds": middle, "least_s": least, "most_s": most, "read_bytes": read, "written_bytes": written},
    )


def main() -> None:
    from benchmarks.cuda.timings import FFN, HIDDEN, random_expert
    from colibri.kernels.cpu.backend import supported_isas

    expert = random_expert("int4", 0)
    print(f"hidden {HIDDEN}, ffn {FFN}, {expert.data.nbytes} bytes; medians of {_TIMES}, least to most")
    for isa in supported_isas():
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            print(beside_a_copy(expert, threads, isa), flush=True)


if __name__ == "__main__":
    main()
