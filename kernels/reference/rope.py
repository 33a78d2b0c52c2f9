"""Rotary position embedding (Su et al., 2021), rotating halves; writes K and V into the paged cache."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, KvView, RopeTable
from colibri.kernels.arithmetic.floats import to_bf16, to_f32
from colibri.kernels.checks.attention import check_rope


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
