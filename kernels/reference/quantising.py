"""Quantising weights to int8 and int4 with a bf16 scale per row and group of K (docs/numerics.md), in NumPy: the same
numbers and scales as the cpu backend's. All arithmetic is fp32, one rounding at a time, subnormals flushed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import F32, Array
from colibri.kernels.arithmetic.floats import to_bf16, to_f32, widen
from colibri.kernels.layout.quant_packing import Quantised

I8 = NDArray[np.int8]

#: Largest and smallest number, by dtype.
_RANGES = {"int8": (-127, 127), "int4": (-8, 7)}
#: Where the weight of largest magnitude may lie on the scale of an int4 group; -8 alone is plain rounding.
_STARTS = (-8, -7, -7.5, -8.5, -9, -9.5, -10, -11, -12, 6.5, 7, 7.5, 8, 8.5, 9, 10, 11)
_REFINEMENTS = 2


def quantise(weight: Array, dtype: str, group: int, importance: F32 | None) -> Quantised:
    """weight [n, k] of finite numbers; importance [k] or None."""
    w = widen(weight).astype(np.float32)
    n, k = w.shape
    share = None if importance is None else _normalised(importance)
    numbers = np.zeros((n, k), dtype=np.int8)
    scales = np.zeros((n, -(-k // group)), dtype=np.uint16)
    for g, start in enumerate(range(0, k, group)):
        part = slice(start, min(start + group, k))
        columns, unit = _scaled(w[:, part]) if dtype == "int4" else (w[:, part], np.ones(n, dtype=np.float32))
        extreme = _extreme(columns)
        if dtype == "int4":
            scale = _search(columns, extreme, _own_share(columns) if share is None else share[None, part])
        else:
            scale = _round_bf16(to_f32(np.abs(extreme) / np.float32(127)))
        numbers[:, part] = _numbers(columns, scale, dtype)
        stored = to_f32(scale * unit)
        scales[:, g] = to_bf16(np.where(stored == 0, np.float32(0), stored))
    return Quantised(numbers, scales)


def _normalised(importance: F32) -> F32:
    most = importance.max(initial=0.0)
    return importance if most == 0 else importance / most


def _own_share(w: F32) -> F32:
    """sqrt(mean of the row's squares + square): large weights count more."""
    squares = to_f32(w * w)
    mean = to_f32(_sum(squares) / np.float32(w.shape[1]))
    return to_f32(np.sqrt(to_f32(mean[:, None] + squares)))


def _scaled(w: F32) -> tuple[F32, F32]:
    """Each row times a power of two that brings its largest magnitude near 1, and what undoes it."""
    exponent = (np.abs(w).max(axis=1).view(np.uint32) >> np.uint32(23)).astype(np.int32) - 127
    exponent = np.clip(exponent, -100, 100)
    one = np.float32(1)
    return to_f32(w * np.ldexp(one, -exponent)[:, None]), np.ldexp(one, exponent).astype(np.float32)


def _extreme(w: F32) -> F32:
    """Of each row the weight of largest magnitude, the first of equals."""
    return np.take_along_axis(w, np.abs(w).argmax(axis=1)[:, None], axis=1)[:, 0]


def _round_bf16(x: F32) -> F32:
    return widen(to_bf16(x)).astype(np.float32)


def _numbers(w: F32, scale: F32, dtype: str) -> F32:
    low, high = _RANGES[dtype]
    with np.errstate(divide="ignore"):
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    return np.clip(np.rint(to_f32(w * inverse[:, None])), low, high)


def _search(w: F32, extreme: F32, share: F32) -> F32:
    """The scale of least weighted squared error among the starts and what least squares makes of them; share: of the
    error of each weight, [n or 1, k]."""
    best, least = np.zeros_like(extreme), np.full_like(extreme, np.inf)
    for start in _STARTS:
        scale = _round_bf16(to_f32(extreme / np.float32(start)))
        for _ in range(_REFINEMENTS + 1):
            error, following = _fit(w, scale, share)
            better = error < least
            best, least = np.where(better, scale, best), np.where(better, error, least)
            scale = following
    return best


def _fit(w: F32, scale: F32, share: F32) -> tuple[F32, F32]:
    """Weighted squared error of a scale's numbers, and the scale that suits these numbers best. Sums ascend over K."""
    q = _numbers(w, scale, "int4")
    off = to_f32(w - to_f32(q * scale[:, None]))
    weighted = to_f32(share * q)
    error = _sum(to_f32(share * to_f32(off * off)))
    along, square = _sum(to_f32(weighted * w)), _sum(to_f32(weighted * q))
    with np.errstate(divide="ignore", invalid="ignore"):
        fitted = np.where(square > 0, to_f32(along / square), scale)
    return error, _round_bf16(fitted)


def _sum(terms: F32) -> F32:
    total = np.zeros(len(terms), dtype=np.float32)
    for column in terms.T:
        total = to_f32(total + column)
    return total
