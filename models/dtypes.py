"""The three dtypes weights are stored in, their names in each file format, and exact conversion between bf16
and fp32.

bf16 is carried as `uint16` bit patterns: NumPy has no such dtype, and a view costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


def fp32(value: float) -> float:
    """Returns the nearest number of 32 bits, as a field of that type carries it."""
    return float(np.float32(value))


@dataclass(frozen=True, slots=True)
class WeightDtype:
    """One storage dtype. name: Colibri's spelling; safetensors: in a file's header; config: in config.json."""

    name: str
    safetensors: str
    config: str
    numpy: np.dtype[np.generic]

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return self.numpy.itemsize


BF16 = WeightDtype("bf16", "BF16", "bfloat16", np.dtype("<u2"))
FP16 = WeightDtype("fp16", "F16", "float16", np.dtype("<f2"))
FP32 = WeightDtype("fp32", "F32", "float32", np.dtype("<f4"))

WEIGHT_DTYPES = (BF16, FP16, FP32)
BY_NAME = {d.name: d for d in WEIGHT_DTYPES}
BY_SAFETENSORS = {d.safetensors: d for d in WEIGHT_DTYPES}
BY_CONFIG = {d.config: d for d in WEIGHT_DTYPES}

_CHUNK = 1 << 16


def bf16_from_fp32(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounds finite fp32 values to bf16 bit patterns, to nearest, ties to even, by integer arithmetic. Keeps the
    shape.
    """
    bits = np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint32)
    result = np.empty(bits.size, dtype=np.uint16)
    for begin in range(0, bits.size, _CHUNK):
        chunk = bits[begin : begin + _CHUNK]
        rounded = chunk + (((chunk >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
        result[begin : begin + _CHUNK] = rounded >> np.uint32(16)
    return result.reshape(values.shape)


def fp32_from_stored(values: npt.NDArray[np.generic], dtype: str) -> npt.NDArray[np.float32]:
    """Widens an array ('bf16' as uint16, 'fp16', 'fp32') to fp32, exactly. Keeps the shape."""
    if dtype == BF16.name:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32)
