"""RMSNorm (Zhang and Sennrich, 2019) and the residual addition."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, Array, ComputeMode
from colibri.kernels.arithmetic.floats import to_f32, to_rows, widen
from colibri.kernels.checks.arrays import check_array, check_mode


def rms_norm(x: F32, weight: F32, eps: float, mode: ComputeMode) -> Array:
    check_mode(mode)
    check_array("x", x, np.float32, ("rows", "hidden"))
    check_array("weight", weight, np.float32, (x.shape[1],))
    if not (np.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps: expected a finite number >= 0, got {eps!r}")
    wide = widen(x)
    with np.errstate(all="ignore"):
        scale = 1.0 / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + np.float64(np.float32(eps)))
        return to_rows(wide * scale * widen(weight), mode)


def add_inplace(x: F32, y: F32) -> None:
    check_array("x", x, np.float32, ("rows", "hidden"))
    check_array("y", y, np.float32, x.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        x[:] = to_f32(to_f32(x) + to_f32(y))
