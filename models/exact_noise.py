"""Near-Gaussian noise that is the same on every machine and with every NumPy: integers from a counter-based
generator.

NumPy promises the raw stream of a bit generator (NEP 19), not what its distributions make of it; those also
use libm.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import numpy.typing as npt

VARIANCE = 43690
"""Variance of the sum of eight uniform bytes: 8 * (256**2 - 1) / 12."""

CHUNK = 1 << 15
"""Elements that are made at a time, so that the temporaries stay in cache."""

_CENTRE = 1020
_WORDS_PER_STEP = 4
_BYTE_LANES = np.uint64(0x00FF00FF00FF00FF)
_LANE_SUM = np.uint64(0x0001000100010001)


def noise(seed: int, name: str, count: int, start: int = 0) -> npt.NDArray[np.int32]:
    """`count` integers from -1020 to 1020 with mean 0 and `VARIANCE`, of the stream of (seed, crc32(name)).

    Each is the sum of the eight bytes of one Philox word, less its mean. `start`, a multiple of 4, skips that
    many.
    """
    if start % _WORDS_PER_STEP:
        raise ValueError(f"start: expected a multiple of {_WORDS_PER_STEP}, got {start}")
    generator = np.random.Philox(key=np.array([seed, zlib.crc32(name.encode())], dtype=np.uint64))
    generator.advance(start // _WORDS_PER_STEP)
    words = generator.random_raw(count)
    pairs = (words & _BYTE_LANES) + ((words >> np.uint64(8)) & _BYTE_LANES)
    return ((pairs * _LANE_SUM) >> np.uint64(48)).astype(np.int32) - np.int32(_CENTRE)


def normal_like(seed: int, name: str, shape: tuple[int, ...], std: float) -> npt.NDArray[np.float32]:
    """An fp32 array with standard deviation `std`: `noise` times one fp32 factor."""
    result = np.empty(math.prod(shape), dtype=np.float32)
    factor = np.float32(std / math.sqrt(VARIANCE))
    for begin in range(0, result.size, CHUNK):
        chunk = result[begin : begin + CHUNK]
        np.multiply(noise(seed, name, chunk.size, begin).astype(np.float32), factor, out=chunk)
    return result.reshape(shape)
