"""Check the arguments of RoPE and attention: shapes, positions and pages of the cache."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, Array, KvView, RopeTable
from colibri.kernels.checks.arrays import check_array, check_below


def check_attention(q: F32, kv: KvView, window: int | None) -> Array:
    """The first visible key of each row, int32 [rows]. Raises TypeError or ValueError naming what is wrong."""
    check_array("q", q, np.float32, ("rows", "heads * head_dim"))
    if window is not None and window < 1:
        raise ValueError(f"window: expected None or at least 1 position, got {window}")
    first_key = np.zeros_like(kv.positions) if window is None else np.maximum(kv.positions - (window - 1), 0)
    check_kv(kv, len(q), first_key)
    _, kv_heads, _, head_dim = kv.k.shape
    if q.shape[1] == 0 or q.shape[1] % (kv_heads * head_dim):
        raise ValueError(
            f"q: expected a multiple of kv_heads * head_dim ({kv_heads * head_dim}) columns, got {q.shape[1]}"
        )
    return first_key


def check_rope(qkv: F32, rope: RopeTable, kv: KvView, heads: int) -> tuple[Array, Array]:
    """Page and slot of each row's position, int32 [rows]. Raises TypeError or ValueError naming what is wrong."""
    check_array("qkv", qkv, np.float32, ("rows", "(heads + 2 kv_heads) * head_dim"))
    check_kv(kv, len(qkv), None)
    _, kv_heads, page, head_dim = kv.k.shape
    if heads < 1 or heads % kv_heads:
        raise ValueError(f"heads: expected a multiple of kv_heads ({kv_heads}), got {heads}")
    check_array("qkv", qkv, np.float32, ("rows", (heads + 2 * kv_heads) * head_dim))
    check_array("rope.cos", rope.cos, np.float32, ("positions", head_dim // 2))
    check_array("rope.sin", rope.sin, np.float32, rope.cos.shape)
    check_below("kv.positions", kv.positions, len(rope.cos), "positions of the RoPE table")
    pages = kv.page_table[kv.row_sequence, kv.positions // page]
    slots = kv.positions % page
    places = pages.astype(np.int64) * page + slots
    if len(np.unique(places)) != len(places):
        raise ValueError(
            "kv.positions: expected a cache slot of its own for each row, got two rows for one slot"
        )
    return pages, slots


def check_kv(kv: KvView, rows: int, first_key: Array | None) -> None:
    """Checks shapes, types, positions, and the pages of keys first_key[r] .. positions[r] (None: the last
    alone)."""
    check_array("kv.k", kv.k, (np.float32, np.uint16), ("pages", "kv_heads", "page", "head_dim"))
    check_array("kv.v", kv.v, kv.k.dtype, kv.k.shape)
    pages, kv_heads, page, head_dim = kv.k.shape
    if page not in (8, 16, 32, 64):
        raise ValueError(f"kv.k: expected pages of 8, 16, 32 or 64 positions, got {page}")
    if kv_heads == 0 or head_dim == 0 or head_dim % 2:
        raise ValueError(f"kv.k: expected heads and an even head_dim above 0, got {list(kv.k.shape)}")
    check_array("kv.page_table", kv.page_table, np.int32, ("sequences", "max_pages"))
    check_array("kv.row_sequence", kv.row_sequence, np.int32, (rows,))
    check_array("kv.positions", kv.positions, np.int32, (rows,))
    sequences, max_pages = kv.page_table.shape
    check_below("kv.row_sequence", kv.row_sequence, sequences, "sequences")
    check_below("kv.positions", kv.positions, max_pages * page, "max_pages * page")
    for row in range(rows):
        last = int(kv.positions[row]) // page
        first = last if first_key is None else int(first_key[row]) // page
        sequence = int(kv.row_sequence[row])
        used = kv.page_table[sequence, first : last + 1]
        bad = np.flatnonzero((used < 0) | (used >= pages))
        if bad.size:
            at = first + int(bad[0])
            got = int(kv.page_table[sequence, at])
            raise ValueError(f"kv.page_table[{sequence}, {at}]: expected 0 .. {pages - 1} (pages), got {got}")
