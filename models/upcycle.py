"""Sparse upcycling (Komatsuzaki et al., 2022, arXiv:2212.05055): experts from one dense FFN, each perturbed
on its own.

Exact on every machine: noise and standard deviation are integers, the rest is single IEEE fp32 operations. No
BLAS, libm, `np.std` or `np.sum` of floats, whose order differs by machine.
"""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

import numpy as np
import numpy.typing as npt

from colibri.models.dtypes import bf16_from_fp32
from colibri.models.exact_noise import CHUNK, VARIANCE, noise

_FIXED_BITS = 20
_FIXED_LIMIT = 64.0
_SUM_CHUNK = 1 << 10
"""1,024 squares below (64 * 2**20)**2 = 2**52 add up to less than 2**62."""
_EXTRA_BITS = 64


def variance(values: npt.NDArray[np.float32]) -> Fraction:
    """Variance of an array with elements below 64 in size, exact on values rounded to 2**-20.

    Raises ValueError beyond that range (an integer sum could overflow).
    """
    if values.size == 0 or not float(np.abs(values).max()) < _FIXED_LIMIT:
        raise ValueError(f"expected finite elements below {_FIXED_LIMIT} in size")
    total = squares = 0
    flat = np.ascontiguousarray(values).reshape(-1)
    for begin in range(0, flat.size, _SUM_CHUNK):
        fixed = np.rint(flat[begin : begin + _SUM_CHUNK] * np.float32(1 << _FIXED_BITS)).astype(np.int64)
        total += int(fixed.sum())
        squares += int((fixed * fixed).sum())
    count = values.size
    return Fraction(count * squares - total * total, count * count << 2 * _FIXED_BITS)


def noise_scale(values: npt.NDArray[np.float32], percent: int) -> np.float32:
    """The factor that turns `noise` into `percent` % of the standard deviation of `values`."""
    square = variance(values) * Fraction(percent * percent, 10000) / VARIANCE
    root = isqrt((square.numerator << 2 * _EXTRA_BITS) // square.denominator)
    return np.float32(root / (1 << _EXTRA_BITS))


def perturbed(
    values: npt.NDArray[np.float32], scale: np.float32, seed: int, name: str
) -> npt.NDArray[np.uint16]:
    """`values + scale * noise(seed, name)`, each product and sum rounded to fp32, as bf16 patterns; same
    shape.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    result = np.empty(flat.size, dtype=np.uint16)
    for begin in range(0, flat.size, CHUNK):
        chunk = flat[begin : begin + CHUNK]
        delta = noise(seed, name, chunk.size, begin).astype(np.float32)
        delta *= scale
        delta += chunk
        result[begin : begin + chunk.size] = bf16_from_fp32(delta)
    return result.reshape(values.shape)
