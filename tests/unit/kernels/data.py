"""Inputs for the bit tests of the CPU kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: (weights, rows) that a backend accepts.
PAIRINGS = (("fp32", "fp32"), ("fp16", "fp32"), ("bf16", "fp32"), ("bf16", "bf16"))
#: What makes summation order, cancellation and flushed subnormals show.
KINDS = ("normal", "wide", "cancelling", "tiny")


def stored(x: Array, dtype: str) -> Array:
    if dtype == "bf16":
        return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(x, {"fp16": np.float16, "fp32": np.float32}[dtype])


def widened(x: Array) -> Array:
    """As float32; subnormals of fp16 become normal, those of bf16 stay."""
    return (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x.astype(np.float32)


def values(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    """float32; 'tiny' has magnitudes around and below 2^-63, so that products and sums are subnormal."""
    x = rng.standard_normal(shape)
    if kind == "wide":
        x *= np.exp2(rng.integers(-12, 13, shape))
    elif kind == "cancelling" and shape[-1] > 1:
        x[..., 1::2] = -x[..., 0 : shape[-1] - shape[-1] % 2 : 2] * (
            1 + 2.0**-7 * rng.integers(-1, 2, x[..., 1::2].shape)
        )
    elif kind == "tiny":
        x *= np.exp2(rng.integers(-66, -60, shape))
        x[rng.random(shape) < 0.1] *= 2.0**-70
    return x.astype(np.float32)


def assert_same_bits(got: Array, expected: Array, what: str) -> None:
    """Shape and every bit; no NaN, whose payload the contract leaves open."""
    assert got.dtype == expected.dtype == np.float32
    assert got.shape == expected.shape, what
    assert not np.isnan(got).any(), what
    different = np.argwhere(got.view(np.uint32) != expected.view(np.uint32))
    if len(different):
        at = tuple(int(i) for i in different[0])
        raise AssertionError(
            f"{what}: {len(different)} of {got.size} differ, first at {at}: {got[at]!r}, {expected[at]!r}"
        )


def relative_rms(got: Array, expected: Array) -> float:
    norm = float(np.sqrt(np.mean(expected**2)))
    return float(np.sqrt(np.mean((got - expected) ** 2))) / (norm or 1.0)
