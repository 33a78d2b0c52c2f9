"""Points for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from colibri.bench.kernels.timing import Point

_COLUMNS = f"{'kernel':<10} {'shape':<22} {'dtype':<8} {'rows':>5} {'time':>12} {'[least-most]':>21}  "


def headline(head: Mapping[str, Any]) -> str:
    peaks = ", ".join(f"{kind} {rate:.0f}" for kind, rate in head["peak_gop_s"].items() if rate)
    threads = f"{head['threads']} thread{'' if head['threads'] == 1 else 's'}"
    first = f"{head['isa']}, {threads}; peaks in Gop/s: {peaks}; {head['rotate_mb']} MB of weights rotated"
    return f"{first}\n{_COLUMNS}{'GB/s':>7} {'of read':>8} {'Gop/s':>8} {'of peak':>8} {'of roof':>8}"


def lines(points: Sequence[Point]) -> Iterator[str]:
    for point in points:
        case = point.case
        spread = f"[{_time(min(point.seconds))}-{_time(max(point.seconds))}]"
        cells = [f"{case.nbytes / point.median / 1e9:7.1f}" if case.nbytes else f"{'':7}"]
        cells.append(_share(point.of_read))
        cells.append(f"{case.operations / point.median / 1e9:8.1f}" if case.operations else f"{'':8}")
        cells += [_share(point.of_peak), _share(point.of_roof)]
        yield (
            f"{case.kernel:<10} {case.shape:<22} {case.dtype:<8} {case.rows:>5} {_time(point.median):>12} "
            f"{spread:>21}  {' '.join(cells)}"
        ).rstrip()


def _share(value: float) -> str:
    return f"{value:8.2f}" if value else f"{'':8}"


def _time(seconds: float) -> str:
    if seconds < 1e-6:
        return f"{1e9 * seconds:.1f} ns"
    return f"{1e6 * seconds:.1f} us" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"
