"""Routing: the k largest logits, ties, weights, bad rows."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.kernels.api import Backend, ComputeMode

from .support import as_float64, assert_close, bf16, row_dtype, softmax, stored


@pytest.mark.parametrize("experts", [1, 2, 15, 16, 17, 31, 33, 256, 1024])
def test_gate(backend: Backend, rng: np.random.Generator, mode: ComputeMode, experts: int) -> None:
    hidden = int(rng.choice([1, 16, 33, 576]))
    weight = stored(rng.standard_normal((experts, hidden)), row_dtype(mode))
    packed = backend.pack_linear(weight, mode)
    for k in sorted({1, 2, min(4, experts), min(16, experts)} - ({2} if experts < 2 else set())):
        for rows in (0, 1, 33):
            x = stored(rng.standard_normal((rows, hidden)), row_dtype(mode))
            got = backend.gate(x, packed, k)
            assert got.experts.dtype == np.uint16
            assert got.weights.dtype == np.float32
            assert got.ok.dtype == np.bool_
            assert got.ok.all()
            assert got.experts.shape == got.weights.shape == (rows, k)
            logits = as_float64(x) @ as_float64(weight).T
            chosen = np.take_along_axis(logits, got.experts.astype(np.int64), axis=1)
            best = -np.sort(-logits, axis=1)[:, :k]
            # Equal to the true k largest up to rounding of the logits, each expert once.
            np.testing.assert_allclose(chosen, best, rtol=1e-5, atol=1e-4)
            assert all(len(set(row)) == k for row in got.experts.tolist())
            if rows:
                assert_close(got.weights, softmax(chosen), 1e-4)


def test_ties_go_to_the_lower_id(backend: Backend) -> None:
    """Logits of small integers are exact: the expected order is known."""
    weight = np.array([[1], [3], [0], [3], [-0.0], [3], [1], [-2]], dtype=np.float32)
    packed = backend.pack_linear(weight, ComputeMode.FP32)
    got = backend.gate(np.ones((1, 1), dtype=np.float32), packed, 8)
    assert got.experts.tolist() == [[1, 3, 5, 0, 6, 2, 4, 7]]
    assert got.weights[0, 0] == got.weights[0, 1] == got.weights[0, 2]
    assert abs(float(got.weights.sum()) - 1) < 1e-6
    zeros = backend.gate(np.zeros((1, 1), dtype=np.float32), packed, 3)
    assert zeros.experts.tolist() == [[0, 1, 2]]


def test_many_ties_against_a_plain_sort(backend: Backend, rng: np.random.Generator) -> None:
    for experts in (7, 16, 40, 300):
        weight = rng.integers(-2, 3, (experts, 4)).astype(np.float32)
        x = rng.integers(-1, 2, (50, 4)).astype(np.float32)
        packed = backend.pack_linear(weight, ComputeMode.FP32)
        logits = x @ weight.T
        for k in (1, 2, 3, min(16, experts)):
            got = backend.gate(x, packed, k)
            expected = [sorted(range(experts), key=lambda e: (-row[e], e))[:k] for row in logits.tolist()]
            assert got.experts.tolist() == expected


def test_bad_rows_are_reported_alone(backend: Backend, rng: np.random.Generator, mode: ComputeMode) -> None:
    weight = stored(rng.standard_normal((16, 40)), row_dtype(mode))
    packed = backend.pack_linear(weight, mode)
    x = rng.standard_normal((9, 40)).astype(np.float32)
    clean = backend.gate(stored(x, row_dtype(mode)), packed, 2)
    x[2, 0], x[4, 39], x[6, 17] = np.nan, np.inf, -np.inf
    rows = x if mode is ComputeMode.FP32 else np.where(np.isnan(x), np.uint16(0x7FC0), bf16(x))
    got = backend.gate(np.ascontiguousarray(rows), packed, 2)
    bad = np.array([2, 4, 6])
    good = np.setdiff1d(np.arange(9), bad)
    assert np.flatnonzero(~got.ok).tolist() == bad.tolist()
    assert not got.experts[bad].any()
    assert not got.weights[bad].any()
    assert got.experts[good].tobytes() == clean.experts[good].tobytes()
    assert got.weights[good].tobytes() == clean.weights[good].tobytes()


def test_overflow_to_inf_is_reported(backend: Backend) -> None:
    packed = backend.pack_linear(np.full((3, 2), 3e38, dtype=np.float32), ComputeMode.FP32)
    got = backend.gate(np.array([[1, 0], [3, 3]], dtype=np.float32), packed, 1)
    assert got.ok.tolist() == [True, False]


def test_underflowed_weights_are_zero(backend: Backend) -> None:
    """A second logit 200 below the first has weight 0, and is chosen all the same."""
    packed = backend.pack_linear(np.array([[0], [200], [-1000]], dtype=np.float32), ComputeMode.FP32)
    got = backend.gate(np.ones((1, 1), dtype=np.float32), packed, 3)
    assert got.experts.tolist() == [[1, 0, 2]]
    assert got.weights.tolist() == [[1.0, 0.0, 0.0]]
