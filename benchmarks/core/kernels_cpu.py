"""Matrix product and expert FFN of the CPU backend, against a plain read of the same weights in the same run.

`python -m benchmarks.core.kernels_cpu --help`. Weights are cycled through more memory than the last-level
cache holds, so that every call reads from DRAM, and timings of kernel and read loop alternate; medians are
printed. `--warm` uses one copy instead (cache-resident for small shapes).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from colibri.kernels.api import ComputeMode, PackedExpert, PackedLinear, UnitBatch
from colibri.kernels.cpu.backend import CpuBackend

COLD_BYTES = 512 << 20
DTYPES = {"bf16": np.uint16, "fp16": np.float16, "fp32": np.float32}


def _random(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    draw = np.random.Generator(np.random.SFC64(seed)).standard_normal(shape, dtype=np.float32)
    draw *= np.float32(shape[-1] ** -0.5)
    return (draw.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else draw.astype(DTYPES[dtype])


def _timed(call: Callable[[int], object], turn: int) -> float:
    start = time.perf_counter()
    call(turn)
    return time.perf_counter() - start


def _paired(
    call: Callable[[int], object], read: Callable[[int], object], seconds: float
) -> tuple[float, float]:
    """Medians of `call` and `read`, alternating, for about `seconds`."""
    call(0)
    read(0)
    end = time.perf_counter() + seconds
    calls: list[float] = []
    reads: list[float] = []
    while time.perf_counter() < end or len(calls) < 5:
        turn = len(calls)
        calls.append(_timed(call, 2 * turn))
        reads.append(_timed(read, 2 * turn + 1))
    return statistics.median(calls), statistics.median(reads)


def _line(what: str, rows: int, seconds: float, read: float, weight_bytes: int, flop: float) -> None:
    print(
        f"{what} rows {rows:4d}: {seconds * 1e6:10.1f} us {weight_bytes / seconds / 1e9:6.1f} GB/s "
        f"(read {weight_bytes / read / 1e9:5.1f}, {read / seconds:4.2f} of it) "
        f"{flop / seconds / 1e9:7.1f} GFLOP/s",
        flush=True,
    )


def _read(backend: CpuBackend, blocks: list[list[np.ndarray]], turn: int) -> None:
    for block in blocks[turn % len(blocks)]:
        backend.read_pass(block)


def _product(backend: CpuBackend, x: np.ndarray, copies: list[PackedLinear], turn: int) -> None:
    backend.linear(x, copies[turn % len(copies)])


def _ffns(
    backend: CpuBackend, x: np.ndarray, pairs: list[list[PackedExpert]], batch: UnitBatch, turn: int
) -> None:
    backend.expert_units(x, pairs[turn % len(pairs)], batch)


@dataclass(frozen=True, slots=True)
class Setting:
    """dtypes: of weights and rows; seconds: per line."""

    rows: Sequence[int]
    dtypes: tuple[str, str]
    warm: bool
    seconds: float


def linear(backend: CpuBackend, n: int, k: int, s: Setting) -> None:
    """y = x W^T with W [n, k]."""
    first = backend.pack_linear(_random((n, k), s.dtypes[0], 1), ComputeMode.FP32)
    copies = [first]
    while not s.warm and len(copies) * first.data.nbytes < COLD_BYTES:
        copies.append(backend.pack_linear(_random((n, k), s.dtypes[0], 1), ComputeMode.FP32))
    for m in s.rows:
        x = _random((m, k), s.dtypes[1], 2)
        product = partial(_product, backend, x, copies)
        read_all = partial(_read, backend, [[c.data] for c in copies])
        call, read = _paired(product, read_all, s.seconds)
        what = f"{backend.isa}/{backend.threads} linear {n}x{k} {s.dtypes[0]}/{s.dtypes[1]}"
        _line(what, m, call, read, first.data.nbytes, 2.0 * m * n * k)


def _batch(rows: int, groups: int) -> UnitBatch:
    """Every row to every group's expert, folded."""
    u32 = np.uint32
    row = np.tile(np.arange(rows, dtype=u32), groups)
    slot = np.repeat(np.arange(groups, dtype=u32), rows)
    weights = np.full(rows * groups, 0.5, np.float32)
    group, count = np.arange(groups, dtype=u32), np.full(groups, rows, u32)
    return UnitBatch(group, count, row, slot, row, weights, np.full(rows, groups, u32))


def units(backend: CpuBackend, hidden: int, ffn: int, s: Setting) -> None:
    """`rows` rows, each to the same two experts."""
    shapes = ((ffn, hidden), (ffn, hidden), (hidden, ffn))
    experts: list[PackedExpert] = []
    while len(experts) < 2 or (not s.warm and sum(e.data.nbytes for e in experts) < COLD_BYTES):
        gate, up, down = (_random(shape, s.dtypes[0], 3 + i) for i, shape in enumerate(shapes))
        experts.append(backend.pack_expert(gate, up, down, ComputeMode.FP32))
    pairs = [experts[i : i + 2] for i in range(0, len(experts) - 1, 2)]
    size = 2 * experts[0].data.nbytes
    for m in s.rows:
        x = _random((m, hidden), s.dtypes[1], 2)
        batch = _batch(m, 2)
        ffns = partial(_ffns, backend, x, pairs, batch)
        read_all = partial(_read, backend, [[e.data for e in pair] for pair in pairs])
        call, read = _paired(ffns, read_all, s.seconds)
        what = f"{backend.isa}/{backend.threads} units {hidden}/{ffn} x2 {s.dtypes[0]}/{s.dtypes[1]}"
        _line(what, m, call, read, size, 2.0 * m * 2 * 3 * hidden * ffn)


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.core.kernels_cpu", description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", default=None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 64, 512])
    parser.add_argument("--part", nargs="+", choices=["linear", "units"], default=["linear", "units"])
    shape_help = "[N, K] of a matrix; for units: hidden and ffn"
    parser.add_argument("--shape", type=int, nargs=2, action="append", metavar=("N", "K"), help=shape_help)
    parser.add_argument("--weights", choices=sorted(DTYPES), default="bf16")
    parser.add_argument("--x", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--seconds", type=float, default=1.0, help="per line")
    args = parser.parse_args()
    setting = Setting(args.rows, (args.weights, args.x), args.warm, args.seconds)
    for threads in args.threads:
        backend = CpuBackend(threads, args.isa)
        if "linear" in args.part:
            for n, k in args.shape or [(14336, 2048), (960, 576), (49152, 576)]:
                linear(backend, n, k, setting)
        if "units" in args.part:
            for hidden, ffn in args.shape or [(2048, 7168), (576, 1536)]:
                units(backend, hidden, ffn, setting)
        backend.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
