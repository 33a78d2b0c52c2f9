"""Grouped-query attention over the paged cache: a plain float64 softmax over the visible keys."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, Array, ComputeMode, KvView
from colibri.kernels.arithmetic.floats import F64, to_rows, widen
from colibri.kernels.checks.arrays import check_mode
from colibri.kernels.checks.attention import check_attention


def attention(q: F32, kv: KvView, window: int | None, mode: ComputeMode) -> Array:
    check_mode(mode)
    first_key = check_attention(q, kv, window)
    _, kv_heads, _, head_dim = kv.k.shape
    heads = q.shape[1] // head_dim
    queries = widen(q).reshape(len(q), kv_heads, heads // kv_heads, head_dim)
    out = np.zeros_like(queries)
    for row, position in enumerate(kv.positions):
        keys = np.arange(first_key[row], position + 1)
        sequence = int(kv.row_sequence[row])
        out[row] = _attend(queries[row], _gather(kv.k, kv, sequence, keys), _gather(kv.v, kv, sequence, keys))
    return to_rows(out.reshape(q.shape), mode)


def _gather(cache: Array, kv: KvView, sequence: int, keys: Array) -> F64:
    """[kv_heads, keys, head_dim] of one sequence."""
    page = cache.shape[2]
    pages = kv.page_table[sequence, keys // page]
    return widen(cache[pages, :, keys % page]).transpose(1, 0, 2)


def _attend(q: F64, k: F64, v: F64) -> F64:
    """q [kv_heads, group, head_dim], k and v [kv_heads, keys, head_dim]."""
    with np.errstate(over="ignore", invalid="ignore"):
        scores = (q @ k.transpose(0, 2, 1)) / np.sqrt(q.shape[-1])
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray((p / p.sum(axis=-1, keepdims=True)) @ v)
