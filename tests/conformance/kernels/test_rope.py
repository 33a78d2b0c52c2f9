"""RoPE and the writing of K and V into the paged cache."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.kernels.api import Backend, ComputeMode, KvView

from .support import (
    Array,
    as_float64,
    assert_close,
    assert_same,
    bf16,
    bound,
    paged_cache,
    row_dtype,
    rows_of,
)

THETA = 10000.0


def rotated(x: Array, positions: Array, head_dim: int) -> Array:
    """x float64 [rows, heads, head_dim]; the formula of Su et al., 2021, pairs (i, i + d/2)."""
    half = head_dim // 2
    angle = positions[:, None] * THETA ** (-2 * np.arange(half) / head_dim)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)


@pytest.mark.parametrize("head_dim", [2, 6, 16, 30, 64, 128])
@pytest.mark.parametrize("page", [8, 16, 32, 64])
def test_rope_and_store(
    backend: Backend, rng: np.random.Generator, mode: ComputeMode, head_dim: int, page: int
) -> None:
    for heads, kv_heads in ((1, 1), (9, 3), (8, 2)):
        for count in (0, 1, 2, 17, 33):
            lengths = [40, 70, 1]
            kv = paged_cache(
                rng, lengths=lengths, kv_heads=kv_heads, head_dim=head_dim, page=page, dtype=row_dtype(mode)
            )
            places = [(s, p) for s, length in enumerate(lengths) for p in range(length)]
            chosen = [places[i] for i in rng.permutation(len(places))[:count]]
            rows = rows_of(kv, [s for s, _ in chosen], [p for _, p in chosen])
            qkv = rng.standard_normal((count, (heads + 2 * kv_heads) * head_dim)).astype(np.float32)
            k_before, v_before = kv.k.copy(), kv.v.copy()
            q = backend.rope_and_store(qkv, backend.rope_table(THETA, head_dim, 70), rows, heads)

            vectors = as_float64(qkv).reshape(count, heads + 2 * kv_heads, head_dim)
            turned = rotated(vectors[:, : heads + kv_heads], rows.positions, head_dim)
            assert q.dtype == np.float32
            assert_close(q, turned[:, :heads].reshape(count, heads * head_dim), 1e-5)
            written = np.zeros((kv.k.shape[0], page), dtype=bool)
            for row, (sequence, position) in enumerate(chosen):
                at, slot = kv.page_table[sequence, position // page], position % page
                written[at, slot] = True
                assert_close(kv.k[at, :, slot], turned[row, heads:], bound(mode))
                stored_v = qkv.reshape(count, heads + 2 * kv_heads, head_dim)[row, heads + kv_heads :]
                expected_v = bf16(stored_v) if mode is ComputeMode.BF16 else stored_v
                assert_same(kv.v[at, :, slot], expected_v)
            for cache, before in ((kv.k, k_before), (kv.v, v_before)):
                assert_same(
                    cache.transpose(0, 2, 1, 3)[~written],
                    before.transpose(0, 2, 1, 3)[~written],
                    "untouched slots",
                )


def test_table_is_the_shared_one(backend: Backend) -> None:
    from colibri.kernels.arithmetic.rope_table import build_rope_table

    table, expected = backend.rope_table(1e5, 64, 100), build_rope_table(1e5, 64, 100)
    assert_same(table.cos, expected.cos)
    assert_same(table.sin, expected.sin)


def test_values_below_the_smallest_normal_become_zero(backend: Backend, mode: ComputeMode) -> None:
    dtype = np.uint16 if mode is ComputeMode.BF16 else np.float32
    cache = [np.ones((1, 1, 8, 2), dtype=dtype) for _ in range(2)]
    one = np.zeros(1, dtype=np.int32)
    kv = KvView(cache[0], cache[1], np.zeros((1, 1), dtype=np.int32), one, one)
    qkv = np.full((1, 6), -1e-40, dtype=np.float32)
    q = backend.rope_and_store(qkv, backend.rope_table(THETA, 2, 1), kv, 1)
    assert not q.any()
    assert not as_float64(kv.k[0, 0, 0]).any()
    assert not as_float64(kv.v[0, 0, 0]).any()
