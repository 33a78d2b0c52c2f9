"""Rotary position embedding (Su et al., 2021), rotating halves; writes K and V into the paged cache."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, Array, KvView, RopeTable
from colibri.kernels.reference.checks import check_array, check_below, check_kv
from colibri.kernels.reference.floats import to_bf16, to_f32


def rope_and_store(qkv: F32, rope: RopeTable, kv: KvView, heads: int) -> F32:
    pages, slots = check_rope(qkv, rope, kv, heads)
    _, kv_heads, _, head_dim = kv.k.shape
    vectors = qkv.reshape(len(qkv), heads + 2 * kv_heads, head_dim)
    cos, sin = rope.cos[kv.positions][:, None], rope.sin[kv.positions][:, None]
    k = _rotate(vectors[:, heads : heads + kv_heads], cos, sin)
    v = to_f32(vectors[:, heads + kv_heads :])
    bf16 = kv.k.dtype == np.uint16
    kv.k[pages, :, slots] = to_bf16(k) if bf16 else k
    kv.v[pages, :, slots] = to_bf16(v) if bf16 else v
    return _rotate(vectors[:, :heads], cos, sin).reshape(len(qkv), heads * head_dim)


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


def _rotate(x: F32, cos: F32, sin: F32) -> F32:
    """x [rows, heads, head_dim], cos and sin [rows, 1, head_dim / 2]; each step rounded to fp32."""
    half = x.shape[-1] // 2
    x = to_f32(x)
    first, second = x[..., :half], x[..., half:]
    with np.errstate(over="ignore", invalid="ignore"):
        rotated = np.concatenate(
            [
                to_f32(first * cos) - to_f32(second * sin),
                to_f32(second * cos) + to_f32(first * sin),
            ],
            axis=-1,
        )
    return to_f32(rotated)
