"""Paged attention against a float64 softmax over the visible keys."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.kernels.api import Backend, ComputeMode

from .support import Array, as_float64, assert_close, bound, paged_cache, row_dtype, rows_of, softmax, stored


def expected_rows(
    q: Array, k: list[Array], v: list[Array], sequences: Array, positions: Array, window: int | None
) -> Array:
    """q [rows, heads, head_dim]; k, v per sequence [kv_heads, length, head_dim]."""
    out = np.zeros(q.shape)
    for row, (sequence, position) in enumerate(zip(sequences, positions, strict=True)):
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(q.shape[1]):
            kv_head = head // (q.shape[1] // k[0].shape[0])
            keys = as_float64(k[sequence][kv_head, first : position + 1])
            values = as_float64(v[sequence][kv_head, first : position + 1])
            out[row, head] = softmax(keys @ as_float64(q[row, head]) / np.sqrt(q.shape[2])) @ values
    return out


@pytest.mark.parametrize("window", [None, 1, 2, 63, 64, 65, 100])
@pytest.mark.parametrize("page", [8, 16, 64])
def test_attention(
    backend: Backend, rng: np.random.Generator, mode: ComputeMode, page: int, window: int | None
) -> None:
    for heads, kv_heads, head_dim in ((1, 1, 2), (9, 3, 64), (4, 4, 30), (8, 1, 16), (4, 2, 128)):
        lengths = [200, 64, 1, 17]
        k, v = (
            [stored(rng.standard_normal((kv_heads, n, head_dim)), row_dtype(mode)) for n in lengths]
            for _ in range(2)
        )
        kv = paged_cache(
            rng,
            lengths=lengths,
            kv_heads=kv_heads,
            head_dim=head_dim,
            page=page,
            dtype=row_dtype(mode),
            k=k,
            v=v,
        )
        for rows in (0, 1, 33):
            sequences = rng.integers(0, len(lengths), rows)
            positions = np.array([rng.integers(0, lengths[s]) for s in sequences], dtype=np.int64)
            q = rng.standard_normal((rows, heads * head_dim)).astype(np.float32) * np.float32(2)
            got = backend.attention(q, rows_of(kv, sequences, positions), window, mode)
            assert got.dtype == (np.uint16 if mode is ComputeMode.BF16 else np.float32)
            wide = q.reshape(rows, heads, head_dim)
            expected = expected_rows(wide, k, v, sequences, positions, window).reshape(q.shape)
            assert_close(got, expected, bound(mode))


@pytest.mark.parametrize("position", [0, 1, 14, 15, 16, 30, 32, 62, 63, 64, 65, 127, 128, 2999])
def test_edges_of_tiles(backend: Backend, rng: np.random.Generator, mode: ComputeMode, position: int) -> None:
    k, v = ([stored(rng.standard_normal((1, position + 1, 32)), row_dtype(mode))] for _ in range(2))
    kv = paged_cache(
        rng, lengths=[position + 1], kv_heads=1, head_dim=32, page=16, dtype=row_dtype(mode), k=k, v=v
    )
    q = rng.standard_normal((1, 64)).astype(np.float32)
    for window in (None, 1, 16, 50, 4096):
        got = backend.attention(q, rows_of(kv, [0], [position]), window, mode)
        wide = q.reshape(1, 2, 32)
        expected = expected_rows(wide, k, v, np.array([0]), np.array([position]), window)
        assert_close(got, expected.reshape(1, 64), bound(mode))


def test_pages_before_the_window_are_never_read(
    backend: Backend, rng: np.random.Generator, mode: ComputeMode
) -> None:
    """A cache may give them back: their table entries are then -1."""
    k, v = ([stored(rng.standard_normal((2, 150, 16)), row_dtype(mode))] for _ in range(2))
    kv = paged_cache(rng, lengths=[150], kv_heads=2, head_dim=16, page=8, dtype=row_dtype(mode), k=k, v=v)
    kv.page_table[0, : (149 - 29) // 8] = -1
    q = rng.standard_normal((1, 64)).astype(np.float32)
    got = backend.attention(q, rows_of(kv, [0], [149]), 30, mode)
    expected = expected_rows(q.reshape(1, 4, 16), k, v, np.array([0]), np.array([149]), 30)
    assert_close(got, expected.reshape(1, 64), bound(mode))


def test_large_scores_do_not_overflow(backend: Backend, rng: np.random.Generator, mode: ComputeMode) -> None:
    """Scores of +-1e4: the softmax is one-hot at the largest."""
    k, v = ([stored(rng.standard_normal((1, 140, 64)), row_dtype(mode))] for _ in range(2))
    kv = paged_cache(rng, lengths=[140], kv_heads=1, head_dim=64, page=64, dtype=row_dtype(mode), k=k, v=v)
    q = (rng.standard_normal((1, 64)) * 1e4).astype(np.float32)
    got = backend.attention(q, rows_of(kv, [0], [139]), None, mode)
    best = int(np.argmax(as_float64(k[0][0]) @ as_float64(q[0])))
    assert_close(got, as_float64(v[0][0, best])[None], bound(mode))


def test_a_bad_row_stays_alone(backend: Backend, rng: np.random.Generator, mode: ComputeMode) -> None:
    k, v = ([stored(rng.standard_normal((1, 80, 16)), row_dtype(mode))] for _ in range(2))
    kv = paged_cache(rng, lengths=[80], kv_heads=1, head_dim=16, page=16, dtype=row_dtype(mode), k=k, v=v)
    q = rng.standard_normal((3, 16)).astype(np.float32)
    clean = backend.attention(q, rows_of(kv, [0, 0, 0], [79, 79, 70]), None, mode)
    q[1, 3] = np.nan
    got = backend.attention(q, rows_of(kv, [0, 0, 0], [79, 79, 70]), None, mode)
    assert np.isnan(as_float64(got[1])).all()
    assert got[[0, 2]].tobytes() == clean[[0, 2]].tobytes()


def test_a_bad_key_or_value_hurts_only_rows_that_see_it(
    backend: Backend, rng: np.random.Generator, mode: ComputeMode
) -> None:
    """In one chunk: rows before the bad position, and rows whose window has passed it, keep their bits."""
    dtype = row_dtype(mode)
    q = rng.standard_normal((40, 2 * 16)).astype(np.float32)
    for bad in ("k", "v"):
        k, v = ([stored(rng.standard_normal((1, 100, 16)), dtype)] for _ in range(2))
        outputs = []
        for spoil in (False, True):
            if spoil:
                (k if bad == "k" else v)[0][0, 75] = np.uint16(0x7FC0) if dtype == "bf16" else np.nan
            kv = paged_cache(rng, lengths=[100], kv_heads=1, head_dim=16, page=16, dtype=dtype, k=k, v=v)
            outputs.append(backend.attention(q, rows_of(kv, [0] * 40, range(60, 100)), 10, mode))
        sees = (np.arange(60, 100) >= 75) & (np.arange(60, 100) < 85)
        assert outputs[0][~sees].tobytes() == outputs[1][~sees].tobytes()
        assert np.isnan(as_float64(outputs[1][sees])).all(axis=1 if bad == "k" else None).all()
