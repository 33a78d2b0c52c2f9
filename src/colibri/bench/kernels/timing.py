"""Cases timed in turn, each with a plain read of the same pages between repetitions, and the peaks beside them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.cpu.backend import CpuBackend

#: Instruction kinds whose peak is measured, by name of `CpuBackend.peak_pass`.
PEAKS = ("fp32", "bf16", "int8")
#: What one timing of a short call lasts at least.
_LEAST_S = 300e-6
_PEAK_S = 3e-3


@dataclass(frozen=True, slots=True)
class Case:
    """call(turn): the work, on the turn-th of the rotated weights. blocks[turn % len]: the bytes it reads, as uint8
    (empty: none worth measuring). operations: 2 per multiply-add. peak: what bounds them, of PEAKS, or ''."""

    kernel: str
    shape: str
    dtype: str
    rows: int
    call: Callable[[int], object]
    blocks: Sequence[Sequence[NDArray[np.uint8]]]
    operations: float
    peak: str
    #: Calls that one `call` stands for.
    calls: int = 1

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks[0]) if self.blocks else 0


@dataclass(frozen=True, slots=True)
class Point:
    """Seconds of each repetition: of one call, of the read beside it; operations a second of the peak beside it
    (0: this path has no such instruction)."""

    case: Case
    seconds: tuple[float, ...]
    reads: tuple[float, ...]
    peaks: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def of_read(self) -> float:
        """Speed as a share of the plain read's; 0 without one. The median of the pairs, as those below."""
        return self._share(lambda read, peak: read)

    @property
    def of_peak(self) -> float:
        return self._share(lambda read, peak: peak)

    @property
    def of_roof(self) -> float:
        """Of the lower roof: of the longer of the two least times."""
        return self._share(max)

    def roof_seconds(self) -> float:
        """The longer of reading and multiplying, in the median."""
        pairs = zip(self.reads, self.peaks, strict=True)
        return statistics.median(max(read, self._least(peak)) for read, peak in pairs)

    def _least(self, peak: float) -> float:
        return self.case.operations / peak if peak else 0.0

    def _share(self, limit: Callable[[float, float], float]) -> float:
        rows = zip(self.seconds, self.reads, self.peaks, strict=True)
        return statistics.median(limit(read, self._least(peak)) / took for took, read, peak in rows)

    def document(self) -> dict[str, object]:
        case = self.case
        return {
            "kernel": case.kernel,
            "shape": case.shape,
            "dtype": case.dtype,
            "rows": case.rows,
            "us": {
                "median": 1e6 * self.median,
                "min": 1e6 * min(self.seconds),
                "max": 1e6 * max(self.seconds),
                "repetitions": len(self.seconds),
            },
            "bytes": case.nbytes,
            "operations": case.operations,
            "gb_s": case.nbytes / self.median / 1e9,
            "gop_s": case.operations / self.median / 1e9,
            "read_gb_s": case.nbytes / statistics.median(self.reads) / 1e9 if case.nbytes else 0.0,
            "peak": case.peak,
            "peak_gop_s": statistics.median(self.peaks) / 1e9,
            "roof_us": 1e6 * self.roof_seconds(),
            "of_read": self.of_read,
            "of_peak": self.of_peak,
            "of_roof": self.of_roof,
        }


def measure(backend: CpuBackend, cases: Sequence[Case], seconds: float, least: int) -> list[Point]:
    """Rounds over all cases, at least `least` of them, until `seconds` are over: what drifts, drifts for all."""
    counts = [_count(case) for case in cases]
    kinds = sorted({case.peak for case in cases} - {""})
    found: list[list[float]] = [[] for _ in cases]
    reads: list[list[float]] = [[] for _ in cases]
    peaks: dict[str, list[float]] = {kind: [] for kind in kinds}
    steps = {kind: _peak_steps(backend, kind) for kind in kinds}
    end = time.perf_counter() + seconds
    turn = done = 0
    while done < least or time.perf_counter() < end:
        for kind in kinds:
            peaks[kind].append(_peak(backend, kind, steps[kind]))
        for index, case in enumerate(cases):
            count = counts[index]
            start = time.perf_counter()
            for _ in range(count):
                case.call(turn)
                turn += 1
            middle = time.perf_counter()
            for _ in range(count if case.blocks else 0):
                for block in case.blocks[turn % len(case.blocks)]:
                    backend.read_pass(block)
                turn += 1
            finished = time.perf_counter()
            found[index].append((middle - start) / count / case.calls)
            reads[index].append((finished - middle) / count if case.blocks else 0.0)
        done += 1
    none = [0.0] * done
    return [
        Point(case, tuple(found[i]), tuple(reads[i]), tuple(peaks.get(case.peak, none)))
        for i, case in enumerate(cases)
    ]


def limits(backend: CpuBackend, repetitions: int = 5) -> Mapping[str, float]:
    """Operations per second of each kind, medians."""
    return {
        kind: statistics.median(_peak(backend, kind, _peak_steps(backend, kind)) for _ in range(repetitions))
        for kind in PEAKS
    }


def _count(case: Case) -> int:
    case.call(0)
    start = time.perf_counter()
    case.call(1)
    return max(1, int(_LEAST_S / (time.perf_counter() - start)))


def _peak(backend: CpuBackend, kind: str, steps: int) -> float:
    start = time.perf_counter()
    operations = backend.peak_pass(kind, steps)
    return operations / (time.perf_counter() - start)


def _peak_steps(backend: CpuBackend, kind: str) -> int:
    """So many that a pass lasts a few milliseconds."""
    steps = 4096
    start = time.perf_counter()
    if not backend.peak_pass(kind, steps):
        return steps
    took = max(time.perf_counter() - start, 1e-6)
    return max(steps, int(steps * _PEAK_S / took))
