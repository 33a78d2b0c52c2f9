"""RMSNorm and the residual addition."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import Backend, ComputeMode

from .support import SIZES, as_float64, assert_close, assert_same, bound, wide_range


def test_rms_norm(backend: Backend, rng: np.random.Generator, mode: ComputeMode) -> None:
    for hidden in (*SIZES, 576, 4096):
        for rows in (0, 1, 2, 17, 33):
            x = wide_range(rng, (rows, hidden), 4).astype(np.float32)
            weight = rng.standard_normal(hidden).astype(np.float32)
            eps = float(rng.choice([1e-6, 1e-5, 1e-2]))
            got = backend.rms_norm(x, weight, eps, mode)
            assert got.dtype == (np.uint16 if mode is ComputeMode.BF16 else np.float32)
            wide = as_float64(x)
            scale = 1 / np.sqrt((wide**2).mean(axis=1, keepdims=True) + eps)
            assert_close(got, wide * scale * as_float64(weight), bound(mode))


def test_rms_norm_of_zero_and_bad_rows(backend: Backend, mode: ComputeMode) -> None:
    x = np.zeros((3, 20), dtype=np.float32)
    x[1, 7] = np.inf
    x[2, 7] = np.nan
    y = as_float64(backend.rms_norm(x, np.ones(20, dtype=np.float32), 1e-5, mode))
    assert not y[0].any()
    assert np.isnan(y[1, 7])
    assert np.isnan(y[2]).all()


def test_add_inplace(backend: Backend, rng: np.random.Generator) -> None:
    for shape in ((0, 5), *((rows, hidden) for rows in SIZES for hidden in (1, 17, 576)), (512, 2048)):
        x, y = (wide_range(rng, shape).astype(np.float32) for _ in range(2))
        expected = x + y
        before = y.copy()
        backend.add_inplace(x, y)
        assert_same(x, expected)
        assert_same(y, before)
