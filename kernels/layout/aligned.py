"""Byte buffers on 64-byte boundaries, as the packed layout asks (docs/numerics.md)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """A zeroed uint8 array [size] whose first byte lies on a 64-byte boundary."""
    raw = np.zeros(size + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]
