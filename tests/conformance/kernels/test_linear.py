"""Matrix products against float64, in every pairing of row and weight dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.kernels.api import Backend, ComputeMode

from .support import FP32_BOUND, SIZES, as_float64, assert_close, stored

PAIRINGS = (("fp32", "fp32"), ("fp32", "fp16"), ("fp32", "bf16"), ("bf16", "bf16"))
ROWS = (0, *SIZES)


@pytest.mark.parametrize(("rows_in", "weights_in"), PAIRINGS)
def test_product(backend: Backend, rng: np.random.Generator, rows_in: str, weights_in: str) -> None:
    for n in SIZES:
        for k in (*SIZES, 130):
            rows = int(rng.choice(ROWS))
            _check(backend, rng, rows, n, k, rows_in, weights_in)
    for rows in ROWS:
        _check(backend, rng, rows, 40, 67, rows_in, weights_in)


@pytest.mark.slow
@pytest.mark.parametrize(("rows_in", "weights_in"), PAIRINGS)
def test_product_at_full_size(
    backend: Backend, rng: np.random.Generator, rows_in: str, weights_in: str
) -> None:
    _check(backend, rng, 512, 257, 2051, rows_in, weights_in)
    _check(backend, rng, 3, 300, 7170, rows_in, weights_in)


def _check(
    b: Backend, rng: np.random.Generator, rows: int, n: int, k: int, rows_in: str, weights_in: str
) -> None:
    x = stored(rng.standard_normal((rows, k)), rows_in)
    weight = stored(rng.standard_normal((n, k)), weights_in)
    y = b.linear(x, b.pack_linear(weight, ComputeMode.FP32))
    assert y.dtype == np.float32
    # Cancellation makes a single output of a short row relatively wrong; the scale is that of the products.
    scale = np.sqrt(k)
    expected = as_float64(x) @ as_float64(weight).T
    assert y.shape == expected.shape
    if expected.size:
        error = float(np.sqrt(np.mean((y - expected) ** 2))) / scale
        assert error <= FP32_BOUND, f"rows={rows} n={n} k={k}: {error}"


def test_rows_beyond_float32(backend: Backend) -> None:
    """Overflow gives Inf and bad values stay in their row."""
    x = np.ones((3, 8), dtype=np.float32)
    x[1] = 3e38
    x[2, 3] = np.nan
    y = backend.linear(x, backend.pack_linear(np.ones((2, 8), dtype=np.float32), ComputeMode.FP32))
    assert y[0].tolist() == [8.0, 8.0]
    assert np.isposinf(y[1]).all()
    assert np.isnan(y[2]).all()


def test_linear_keeps_scale(backend: Backend, rng: np.random.Generator) -> None:
    """Non-negative data has no cancellation: here the plain relative bound holds."""
    x, weight = rng.random((33, 500)).astype(np.float32), rng.random((31, 500)).astype(np.float32)
    y = backend.linear(x, backend.pack_linear(weight, ComputeMode.FP32))
    assert_close(y, as_float64(x) @ as_float64(weight).T, FP32_BOUND)
