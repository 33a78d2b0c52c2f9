"""Everything but the big products of the CPU backend: norm, RoPE, attention, gate, group, merge, embed, sampling.

`python -m benchmarks.core.kernels_dense --help`. Microseconds per call from Python, the shortest of many: other
load on the machine only adds. Caches are warm as far as they hold the data.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from colibri.kernels.api import Array, ComputeMode, KvView, SamplingParams
from colibri.kernels.cpu.backend import CpuBackend

RNG = np.random.default_rng(1)
PAGE = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a model: hidden size, query heads, key/value heads, head size."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int


SHAPES = (Shape(576, 9, 3, 64), Shape(2048, 16, 8, 128))
#: (rows, positions already in the cache)
STEPS = ((1, 0), (1, 511), (1, 4095), (512, 0))
SAMPLING = {
    "greedy": SamplingParams(),
    "temperature": SamplingParams(1.0),
    "top-k 50": SamplingParams(1.0, 50),
    "top-p 0.9": SamplingParams(1.0, 0, 0.9),
    "top-k 50 top-p 0.9": SamplingParams(1.0, 50, 0.9),
}


def shortest(call: Callable[[], object], seconds: float) -> float:
    """Microseconds of the shortest call, or of the shortest of groups of calls where one is too short to time."""
    call()
    start = time.perf_counter()
    call()
    count = max(1, int(60e-6 / (time.perf_counter() - start)))
    best, end = np.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - start) / count)
    return float(best) * 1e6


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape, dtype=np.float32)


def stored(x: Array, mode: ComputeMode) -> Array:
    return (x.view(np.uint32) >> 16).astype(np.uint16) if mode is ComputeMode.BF16 else x


def dense(
    b: CpuBackend, s: Shape, mode: ComputeMode, rows: int, past: int
) -> dict[str, Callable[[], object]]:
    """The calls of one layer for `rows` positions of one sequence behind `past` others; 8 experts, top-2."""
    pages = -(-(past + rows) // PAGE)
    k, v = (stored(draw(pages, s.kv_heads, PAGE, s.head_dim), mode) for _ in range(2))
    table = RNG.permutation(pages).astype(np.int32)[None]
    positions = np.arange(past, past + rows, dtype=np.int32)
    kv = KvView(k, v, table, np.zeros(rows, np.int32), positions)
    written = KvView(k.copy(), v.copy(), table, kv.row_sequence, positions)
    x, y, norm = draw(rows, s.hidden), np.zeros((rows, s.hidden), np.float32), draw(s.hidden)
    qkv, q = draw(rows, (s.heads + 2 * s.kv_heads) * s.head_dim), draw(rows, s.heads * s.head_dim)
    rope = b.rope_table(1e5, s.head_dim, past + rows)
    row, gate = stored(x, mode), b.pack_linear(stored(draw(8, s.hidden), mode), mode)
    keys = b.gate(row, gate, 2).experts.astype(np.uint32).ravel()
    vocabulary = b.pack_linear(stored(draw(4096, s.hidden), mode), mode)
    ids = RNG.integers(0, 4096, rows).astype(np.uint32)
    parts, terms = [draw(rows, s.hidden) for _ in range(2)], np.repeat(np.arange(rows, dtype=np.uint32), 2)
    part, offsets = (
        np.tile(np.arange(2, dtype=np.uint32), rows),
        np.arange(0, 2 * rows + 1, 2, dtype=np.uint32),
    )
    return {
        "embed": lambda: b.embed(vocabulary, ids),
        "rms_norm": lambda: b.rms_norm(x, norm, 1e-5, mode),
        "rope": lambda: b.rope_and_store(qkv, rope, written, s.heads),
        "attention": lambda: b.attention(q, kv, None, mode),
        "add": lambda: b.add_inplace(y, x),
        "gate": lambda: b.gate(row, gate, 2),
        "group": lambda: b.group(keys, 8),
        "merge": lambda: b.merge(parts, part, terms, offsets),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.core.kernels_dense", description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--isa", default=None)
    parser.add_argument("--mode", nargs="+", choices=["fp32", "bf16"], default=["bf16", "fp32"])
    parser.add_argument("--seconds", type=float, default=0.3, help="per number")
    args = parser.parse_args()
    for threads in args.threads:
        b = CpuBackend(threads, args.isa)
        name = f"{b.isa}/{threads}"
        for mode in map(ComputeMode, args.mode):
            for s in SHAPES:
                for rows, past in STEPS:
                    calls = dense(b, s, mode, rows, past)
                    times = "  ".join(
                        f"{what} {shortest(call, args.seconds):.1f}" for what, call in calls.items()
                    )
                    what = (
                        f"{s.hidden} {s.heads}/{s.kv_heads}/{s.head_dim} {mode.value} rows {rows} past {past}"
                    )
                    print(f"{name} {what}: {times}", flush=True)
        logits = draw(49152) * np.float32(3)
        for what, params in SAMPLING.items():
            time_us = shortest(partial(b.sample, logits, params, 5), args.seconds)
            print(f"{name} sample 49152 {what}: {time_us:.0f}", flush=True)
        b.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
