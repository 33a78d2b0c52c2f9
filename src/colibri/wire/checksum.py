"""CRC-32C (Castagnoli; RFC 3720 appendix B.4) of a frame: its index lists in field order, then its tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from google_crc32c import extend
from numpy.typing import NDArray


def extend_lists(crc: int, lists: Iterable[NDArray[Any]]) -> int:
    """Continues a checksum over arrays, each as its little-endian bytes."""
    for values in lists:
        if values.size:
            crc = extend(crc, values)
    return int(crc)


def extend_tensor(crc: int, tensor: bytes | memoryview) -> int:
    """Continues a checksum over a tensor's bytes, without a copy."""
    if len(tensor) == 0:
        return crc
    # The library takes no memoryview, but any array over one.
    return int(extend(crc, tensor if type(tensor) is bytes else np.frombuffer(tensor, np.uint8)))
