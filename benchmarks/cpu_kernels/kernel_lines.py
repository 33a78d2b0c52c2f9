"""The lines of `make reach TOPIC=cpu-kernels` about single kernels, each over seven fresh processes.

A share is the median of pairs (kernel, read of the same pages, peak of the instruction) within a process, then the
median over the processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from benchmarks.cpu_kernels.fresh import Spread, alternated, bench_kernels
from benchmarks.table import Line, Outcome

#: Rows that are watched for cliffs, and the larger ones.
ROWS = (*range(1, 35), 64, 512)
FORMATS = ("bf16", "int8g128", "int4g64")
_PATHS = {"avx512": 0.95, "avx2": 0.60}
_TOP_2 = {8: (4, 0), 64: (11, 0), 256: (26, 0), 1024: (45, 60)}
_SHARE_1 = 0.95
_SHARE_FEW = 0.85
_CLIFF = 1.15

Key = tuple[str, str, str, int]


@cache
def _top_k() -> list[dict[Key, Any]]:
    found = alternated({"": bench_kernels("--only", "top-k", "--seconds", 0, "--repetitions", 7)})
    return [_points(run) for run in found[""]]


@cache
def _gate() -> list[dict[Key, Any]]:
    arguments = ("--only", "gate", "--rows", 1, "--seconds", 0.3, "--repetitions", 50, "--threads", 2)
    return [_points(run) for run in alternated({"": bench_kernels(*arguments)})[""]]


@cache
def _ffn() -> Mapping[str, list[dict[Key, Any]]]:
    """format, or path -> points of its processes; all of them alternate."""
    usual = ("--only", "ffn", "--seconds", 0, "--threads", 2, "--rows")
    arms = {name: bench_kernels(*usual, *ROWS, "--repetitions", 9, "--formats", name) for name in FORMATS}
    arms |= {
        path: bench_kernels(*usual, 512, "--repetitions", 5, "--formats", "bf16", "--isa", path)
        for path in _PATHS
    }
    return {name: [_points(run) for run in runs] for name, runs in alternated(arms).items()}


def _points(run: Any) -> dict[Key, Any]:
    return {(p["kernel"], p["shape"], p["dtype"], p["rows"]): p for p in run["points"]}


def _over(runs: Sequence[Mapping[Key, Any]], key: Key, field: str) -> Spread:
    return Spread(tuple(float(run[key][field]) for run in runs))


def _ffn_key(kind: str, rows: int) -> Key:
    return ("ffn", "2048/7168", kind, rows)


def top_2(experts: int) -> Outcome:
    """Nanoseconds a row where the logits lie in the first-level cache, and in the second-level one."""
    runs = _top_k()
    l1, l2 = _TOP_2[experts]
    sizes = sorted(rows for kernel, shape, _, rows in runs[0] if shape == f"2 of {experts}" and rows != 4096)
    found = [
        Spread(tuple(1e3 * run["top-k", f"2 of {experts}", "fp32", rows]["us"]["median"] for run in runs))
        for rows in sizes
    ]
    text = ", ".join(f"{where} {each.text(1)} ns" for where, each in zip(("L1", "L2"), found, strict=True))
    met = found[0].median <= l1 and (not l2 or found[1].median <= l2)
    return Outcome(text, met, "one thread, weights included", {"ns": [list(each.values) for each in found]})


def gate_from_python() -> Outcome:
    found = Spread(tuple(run["gate", "2048 -> 8", "bf16", 1]["us"]["median"] for run in _gate()))
    return Outcome(f"{found.text()} us", found.median <= 5, "", {"us": list(found.values)})


def shares(kind: str, rows: Sequence[int], field: str, least: float) -> Outcome:
    """The least share of all rows."""
    runs = _ffn()[kind]
    found = {count: _over(runs, _ffn_key(kind, count), field) for count in rows}
    return _shares(found, runs, [_ffn_key(kind, count) for count in rows], least)


def path(name: str) -> Outcome:
    runs = _ffn()[name]
    key = _ffn_key("bf16", 512)
    return _shares({512: _over(runs, key, "of_peak")}, runs, [key], _PATHS[name])


def _shares(
    found: Mapping[int, Spread], runs: Sequence[Mapping[Key, Any]], keys: Sequence[Key], least: float
) -> Outcome:
    text = "; ".join(f"{rows}: {share.text()}" for rows, share in found.items())
    read = _over(runs, keys[0], "read_gb_s")
    peak = _over(runs, keys[0], "peak_gop_s")
    limit = f"read {read.text(0)} GB/s, {runs[0][keys[0]]['peak'] or 'no'} peak {peak.text(0)} Gop/s"
    met = min(share.median for share in found.values()) >= least
    detail: dict[str, object] = {str(rows): list(share.values) for rows, share in found.items()}
    return Outcome(text, met, limit, detail)


def cliffs(kind: str) -> Outcome:
    """time(n + 1) over what the roof makes of time(n), in each process, over its neighbours; the worst of 1 .. 34."""
    runs = _ffn()[kind]
    found = {}
    for rows in range(1, 34):
        pairs = [(run[_ffn_key(kind, rows)], run[_ffn_key(kind, rows + 1)]) for run in runs]
        found[rows] = Spread(
            tuple(
                after["us"]["median"] / (before["us"]["median"] * after["roof_us"] / before["roof_us"])
                for before, after in pairs
            )
        )
    worst = sorted(found, key=lambda rows: found[rows].median)[::-1][:3]
    text = "worst: " + ", ".join(f"{rows} to {rows + 1}: {found[rows].text()}" for rows in worst)
    detail: dict[str, object] = {f"{rows}-{rows + 1}": list(each.values) for rows, each in found.items()}
    return Outcome(text, found[worst[0]].median <= _CLIFF, "1 to 34 rows", detail)


def lines() -> list[Line]:
    found = []
    for experts, (l1, l2) in _TOP_2.items():
        target = f"at most {l1} ns a row in L1" + (f", {l2} in L2" if l2 else "")
        found.append(
            Line(f"top2-{experts}", f"top-2 of {experts} logits, one thread", target, partial(top_2, experts))
        )
    found.append(
        Line("gate-1", "whole gate, 1 row, 2048 -> 8, from Python", "at most 5 us", gate_from_python)
    )
    for kind in FORMATS:
        rows = (1, 2, 3, 4) if kind == "bf16" else (1,)
        words = f"FFN {kind}, {rows[0]} to {rows[-1]} rows" if len(rows) > 1 else f"FFN {kind}, 1 row"
        found.append(
            Line(
                f"ffn-read-{kind}", words, "at least 95 % of the read bandwidth",
                partial(shares, kind, rows, "of_read", _SHARE_1),
            )
        )  # fmt: skip
        found.append(
            Line(
                f"ffn-few-{kind}", f"FFN {kind}, 2 to 8 rows", "at least 85 % of the lower roof",
                partial(shares, kind, tuple(range(2, 9)), "of_roof", _SHARE_FEW),
            )
        )  # fmt: skip
    middle = (15, 16, 17, 31, 32, 33, 64)
    found += [
        Line(
            "ffn-bf16-middle", "FFN bf16, 15 to 64 rows, 2 threads",
            "at least 92 % of the bf16 peak, or of the read bandwidth where reading takes longer",
            partial(shares, "bf16", middle, "of_roof", 0.92),
        ),
        Line(
            "ffn-bf16-512", "FFN bf16, 512 rows, 2 threads", "at least 95 % of the bf16 peak",
            partial(shares, "bf16", (512,), "of_peak", 0.95),
        ),
    ]  # fmt: skip
    for kind in ("int8g128", "int4g64"):
        found.append(
            Line(
                f"ffn-{kind}-512", f"FFN {kind}, 512 rows, 2 threads", "at least 86 % of the int8 peak",
                partial(shares, kind, (512,), "of_peak", 0.86),
            )
        )  # fmt: skip
    for name, least in _PATHS.items():
        target = f"at least {100 * least:.0f} % of its fp32 FMA peak"
        found.append(Line(f"ffn-{name}", f"FFN bf16, 512 rows, {name} path", target, partial(path, name)))
    for kind in FORMATS:
        target = "time(n+1) within 1.15 of what the lower roof makes of time(n)"
        found.append(Line(f"cliffs-{kind}", f"FFN {kind}, 1 to 34 rows", target, partial(cliffs, kind)))
    return found
