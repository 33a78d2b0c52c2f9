"""A grouped SwiGLU FFN in Triton, to compare with: two launches for all experts, bf16, tiles of rows of one expert.

Imported only where it is timed: it needs Triton. hidden and ffn are multiples of the blocks, as Mixtral's are."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
from __future__ import annotations

import os
from typing import Any

import triton
import triton.language as tl

#: Columns and elements of K of a tile; its rows are 16, 64 or 128 by the largest group.
BLOCK_N, BLOCK_K = 64, 64
#: Triton's interpreter, which tests use, multiplies no bf16; widening it first is exact.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def gate_up(
    x,
    w,
    h,
    expert,
    first,
    end,
    K,
    F,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """h [entries, F] = silu(gate) * up of x [entries, K] by w [experts, 2 F, K]. A program: one tile, BN columns."""
    tile = tl.program_id(0)
    e = tl.load(expert + tile).to(tl.int64)
    rows = tl.load(first + tile).to(tl.int64) + tl.arange(0, BM)
    live = rows < tl.load(end + tile)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    gate = tl.zeros((BM, BN), dtype=tl.float32)
    up = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rows[:, None] * K + k + ks[None, :], mask=live[:, None], other=0.0)
        at = w + (e * 2 * F + columns[None, :]) * K + k + ks[:, None]
        g = tl.load(at)
        u = tl.load(at + F * K)
        if WIDE:
            a, g, u = a.to(tl.float32), g.to(tl.float32), u.to(tl.float32)
        gate = tl.dot(a, g, gate)
        up = tl.dot(a, u, up)
    middle = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(h + rows[:, None] * F + columns[None, :], middle.to(tl.bfloat16), mask=live[:, None])


@triton.jit
def down(
    h,
    w,
    y,
    expert,
    first,
    end,
    K,
    N,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    WIDE: tl.constexpr,
):
    """y [entries, N] fp32 = h [entries, K] by w [experts, N, K]."""
    tile = tl.program_id(0)
    e = tl.load(expert + tile).to(tl.int64)
    rows = tl.load(first + tile).to(tl.int64) + tl.arange(0, BM)
    live = rows < tl.load(end + tile)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        a = tl.load(h + rows[:, None] * K + k + ks[None, :], mask=live[:, None], other=0.0)
        b = tl.load(w + (e * N + columns[None, :]) * K + k + ks[:, None])
        if WIDE:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total)
    tl.store(y + rows[:, None] * N + columns[None, :], total, mask=live[:, None])


def block_rows(most: int) -> int:
    """Rows of a tile where the largest group has `most`."""
    return 16 if most <= 16 else 64 if most <= 512 else 128


def ffn(x: Any, w13: Any, w2: Any, h: Any, y: Any, tiles: tuple[Any, Any, Any], rows: int) -> None:
    """Torch tensors on the GPU: x [entries, hidden], w13 [experts, 2 ffn, hidden], w2 [experts, hidden, ffn], h
    [entries, ffn] bf16, y [entries, hidden] fp32. tiles: expert, first and end entry of each, int32; rows: of a
    tile."""
    hidden, wide = x.shape[1], h.shape[1]
    count = len(tiles[0])
    blocks = {"BM": rows, "BN": BLOCK_N, "BK": BLOCK_K, "WIDE": INTERPRETED}
    gate_up[(count, wide // BLOCK_N)](x, w13, h, *tiles, hidden, wide, **blocks)
    down[(count, hidden // BLOCK_N)](h, w2, y, *tiles, wide, hidden, **blocks)
