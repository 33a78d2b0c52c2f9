"""Number formats and the scalar functions whose every rounding is fixed (docs/numerics.md: storage, exp,
silu).

float64 values become fp32 or bf16 only through `to_f32` and `to_bf16`, which also flush subnormals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import F32, Array, ComputeMode

F64 = NDArray[np.float64]
BF16 = NDArray[np.uint16]

_TINY = np.float32(2.0**-126)
_EXP_HIGH = np.float32(88.72283)
_EXP_LOW = np.float32(-87.33654)
_LOG2_E = np.float32(1.44269504)
_LN2_HIGH = np.float32(-0.693359375)
_LN2_LOW = np.float32(2.12194440e-4)
#: Cephes expf.c (Moshier, 1992).
_EXP_COEFFICIENTS = tuple(
    np.float32(c)
    for c in (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
)
_DTYPES: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint16),
    "fp16": np.dtype(np.float16),
    "fp32": np.dtype(np.float32),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def dtype_name(array: Array) -> str:
    """'bf16', 'fp16' or 'fp32' of an array as the API carries it."""
    return _NAMES[array.dtype]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy type that carries 'bf16', 'fp16' or 'fp32'."""
    return _DTYPES[name]


def to_f32(x: F64 | F32) -> F32:
    """Nearest fp32, subnormals to a zero of the same sign."""
    with np.errstate(over="ignore", under="ignore"):
        y = np.asarray(x).astype(np.float32)
    return np.where(np.abs(y) < _TINY, np.copysign(np.float32(0), y), y)


def to_bf16(x: F64 | F32) -> BF16:
    """Nearest-even bf16 of the nearest fp32, subnormals to zero, NaN quiet (as vcvtneps2bf16)."""
    f32 = np.ascontiguousarray(to_f32(x))
    bits = f32.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(f32), quiet_nan, rounded).astype(np.uint16)


def widen(x: Array) -> F64:
    """bf16 (uint16), fp16 or fp32 to float64, fp32 subnormals read as zero."""
    if x.dtype == np.uint16:
        x = (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return to_f32(x).astype(np.float64)


def to_rows(x: F64 | F32, mode: ComputeMode) -> Array:
    """Rounded to the mode's row dtype."""
    return to_bf16(x) if mode is ComputeMode.BF16 else to_f32(x)


def exp32(x: F32) -> F32:
    """The contract's exponential, bit for bit."""
    x = to_f32(x)
    inside = np.isfinite(x) & (x <= _EXP_HIGH) & (x >= _EXP_LOW)
    t = np.where(inside, x, np.float32(0))
    n = np.rint(t * _LOG2_E)
    r = _fma(n, _LN2_LOW, _fma(n, _LN2_HIGH, t))
    p = np.full_like(r, _EXP_COEFFICIENTS[0])
    for coefficient in _EXP_COEFFICIENTS[1:]:
        p = _fma(p, r, coefficient)
    y = _fma(p, to_f32(r * r), r + np.float32(1))
    low = np.floor(n * np.float32(0.5))
    with np.errstate(over="ignore"):
        y = to_f32(np.ldexp(np.ldexp(y, low.astype(np.int32)), (n - low).astype(np.int32)))
    y = np.where(x > _EXP_HIGH, np.float32(np.inf), y)
    y = np.where(x < _EXP_LOW, np.float32(0), y)
    return np.where(np.isnan(x), np.float32(np.nan), y)


def silu_mul(gate: F64, up: F64) -> F64:
    """gate / (1 + exp(-gate)) * up in float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(gate / (1.0 + np.exp(-gate)) * up)


def _fma(a: F32, b: F32 | np.float32, c: F32 | np.float32) -> F32:
    """fp32 fma for finite values: the float64 product is exact; the sum is rounded to odd, so that the
    second rounding to fp32 is right (Boldo and Melquiond, 2008)."""
    product = a.astype(np.float64) * np.float64(b)
    addend = np.asarray(c, dtype=np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    even = (total.view(np.int64) & 1) == 0
    toward = np.where(error > 0, np.inf, -np.inf)
    total = np.where((error != 0) & even, np.nextafter(total, toward), total)
    return to_f32(total)
