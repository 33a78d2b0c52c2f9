"""RoPE tables with the same bits on every machine: float64 pow, sin and cos made of + - * / only.

NumPy's and libm's transcendental functions choose code by processor, so none is used here. Every NumPy
operation below is one correctly rounded IEEE operation per element or exact (rint, ldexp, frexp,
comparisons). Argument reduction by pi / 2 in three parts after Cody and Waite (Software Manual for the
Elementary Functions, 1980); the polynomials on [-pi/4, pi/4] are fdlibm's (Sun Microsystems, 1993: k_sin.c,
k_cos.c). Before the last rounding to fp32 the results are good to about 1e-15, for angles up to MAX_ANGLE.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import RopeTable
from colibri.kernels.arithmetic.log64 import LN2_HIGH, LN2_LOW, log64

F64 = NDArray[np.float64]

#: Beyond it the product n * _PIO2[i] would no longer be exact (20 bits of n, 33 bits of each part).
MAX_ANGLE = float(2**20)

_PIO2 = tuple(map(float.fromhex, ("0x1.921fb544p+0", "0x1.0b4611a6p-34", "0x1.3198a2e037073p-69")))
_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
_SIN = (
    -1.66666666666666324348e-01,
    8.33333333332248946124e-03,
    -1.98412698298579493134e-04,
    2.75573137070700676789e-06,
    -2.50507602534068634195e-08,
    1.58969099521155010221e-10,
)
_COS = (
    4.16666666666666019037e-02,
    -1.38888888888741095749e-03,
    2.48015872894767294178e-05,
    -2.75573143513906633035e-07,
    2.08757232129817482790e-09,
    -1.13596475577881948265e-11,
)


def build_rope_table(theta: float, head_dim: int, positions: int) -> RopeTable:
    """cos and sin, fp32 [positions, head_dim / 2], of fp32(position * fp32(theta ** (-2 i / head_dim))).

    Raises ValueError when theta is not a finite number above 1e-3, head_dim not even and positive, or
    positions outside 0 .. MAX_ANGLE.
    """
    if not (math.isfinite(theta) and theta > 1e-3):
        raise ValueError(f"theta: expected a finite number above 0.001, got {theta!r}")
    if head_dim <= 0 or head_dim % 2:
        raise ValueError(f"head_dim: expected an even number above 0, got {head_dim!r}")
    if not 0 <= positions <= MAX_ANGLE:
        raise ValueError(f"positions: expected 0 .. {int(MAX_ANGLE)}, got {positions!r}")
    half = head_dim // 2
    inv_freq = np.array([_pow(theta, -2.0 * i / head_dim) for i in range(half)], dtype=np.float32)
    angle = np.arange(positions, dtype=np.float32)[:, None] * inv_freq
    largest = float(angle.max(initial=0.0))
    if largest > MAX_ANGLE:
        raise ValueError(f"positions: expected angles up to {MAX_ANGLE}, got {largest} (theta {theta!r})")
    cos, sin = _cos_sin(angle.astype(np.float64))
    return RopeTable(cos.astype(np.float32), sin.astype(np.float32))


def _exp(x: float) -> float:
    """Exponential: x = n ln 2 + r, Taylor series over |r| <= 0.35."""
    n = math.floor(x / (LN2_HIGH + LN2_LOW) + 0.5)
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    y = 1.0
    for i in range(15, 0, -1):
        y = 1.0 + y * r / i
    return math.ldexp(y, n)


def _pow(base: float, exponent: float) -> float:
    return _exp(exponent * log64(base))


def _cos_sin(angle: F64) -> tuple[F64, F64]:
    n = np.rint(angle * _TWO_OVER_PI)
    r = ((angle - n * _PIO2[0]) - n * _PIO2[1]) - n * _PIO2[2]
    z = r * r
    s = r + r * z * _horner(z, _SIN)
    c = 1.0 - (0.5 * z - z * z * _horner(z, _COS))
    quadrant = n - 4.0 * np.floor(n * 0.25)
    swap = (quadrant == 1.0) | (quadrant == 3.0)
    cos = np.where(swap, s, c)
    sin = np.where(swap, c, s)
    cos = np.where((quadrant == 1.0) | (quadrant == 2.0), -cos, cos)
    sin = np.where(quadrant >= 2.0, -sin, sin)
    return cos, sin


def _horner(z: F64, coefficients: tuple[float, ...]) -> F64:
    y = np.full_like(z, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        y = y * z + coefficient
    return y
