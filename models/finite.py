"""Check that weights are finite: one NaN would spread over every answer and be blamed on the request that meets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.errors import CheckpointError

#: Elements looked at together: they stay in the cache between the two passes.
_CHUNK = 1 << 17
#: Bits of the exponent, all set in Inf and NaN alone, by dtype as the project carries it.
_EXPONENT = {"bf16": 0x7F80, "fp16": 0x7C00, "fp32": 0x7F800000}
_INTEGERS: dict[int, tuple[np.dtype[Any], np.dtype[Any]]] = {
    2: (np.dtype(np.int16), np.dtype(np.uint16)),
    4: (np.dtype(np.int32), np.dtype(np.uint32)),
}


def check_finite(
    array: NDArray[Any],
    dtype: str,
    where: str,
    *,
    each: Callable[[memoryview], object] | None = None,
    whole: tuple[int, ...] | None = None,
    first: int = 0,
) -> None:
    """Raises CheckpointError, naming `where` and the first element that is NaN or Inf. Reads the whole array.

    array: contiguous; `dtype` 'bf16' (as uint16), 'fp16' or 'fp32'.
    each: called with the bytes of one piece after another, while the core's cache still holds them.
    whole, first: the array is a part of a tensor of shape `whole`, from element `first` on; errors then count
        elements of the tensor.

    Two maxima find everything at memory speed: positive non-finite patterns are the largest as signed integers,
    negative ones as unsigned integers.
    """
    signed, unsigned = _INTEGERS[array.itemsize]
    exponent = _EXPONENT[dtype]
    negative = exponent | 1 << (8 * array.itemsize - 1)
    flat = array.reshape(-1)
    for begin in range(0, flat.size, _CHUNK):
        chunk = flat[begin : begin + _CHUNK]
        if chunk.view(signed).max() >= exponent or chunk.view(unsigned).max() >= negative:
            bits = chunk.view(unsigned)
            at = begin + int(np.flatnonzero((bits & exponent) == exponent)[0])
            place = [int(i) for i in np.unravel_index(first + at, array.shape if whole is None else whole)]
            value = int(flat.view(unsigned)[at])
            raise CheckpointError.of(where, f"element {place}", "a finite value", spelt(value, dtype))
        if each is not None:
            each(chunk.data)


def spelt(value: int, dtype: str) -> str:
    """Says which of NaN and Inf these bits are, and the bits."""
    exponent = _EXPONENT[dtype]
    return (
        f"{'NaN' if value & exponent - 1 & ~exponent else 'Inf'} (0x{value:0{8 if dtype == 'fp32' else 4}x})"
    )
