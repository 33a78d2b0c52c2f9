"""The packed layout of int8 and int4 weights (docs/numerics.md): panels of 32 rows; per group of K 32 bf16 scales, then
the numbers plus their zero point, four of K side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import GROUPS, PANEL
from colibri.kernels.arithmetic.floats import BF16
from colibri.kernels.checks.arrays import check_array

U8 = NDArray[np.uint8]
I8 = NDArray[np.int8]

_OCTET = 8
_SCALE_BYTES = 2 * PANEL
_ZERO = {"int8": 128, "int4": 8}
#: Bytes of a panel for eight elements of K.
_OCTET_BYTES = {"int8": PANEL * _OCTET, "int4": PANEL * _OCTET // 2}


@dataclass(frozen=True, slots=True)
class Quantised:
    """numbers int8 [n, k]; scales bf16 [n, groups]: the weight is their product."""

    numbers: I8
    scales: BF16


def check_quantised_format(dtype: str, group: int) -> None:
    if dtype not in _ZERO:
        raise ValueError(f"dtype: expected 'int8' or 'int4', got {dtype!r}")
    if group not in GROUPS:
        raise ValueError(f"group: expected 32, 64 or 128, got {group!r}")


def quant_linear_bytes(dtype: str, n: int, k: int, group: int) -> int:
    check_quantised_format(dtype, group)
    return -(-n // PANEL) * (-(-k // group) * _SCALE_BYTES + -(-k // _OCTET) * _OCTET_BYTES[dtype])


def pack(matrix: Quantised, dtype: str, group: int) -> U8:
    """Rows are padded to whole panels and K to whole octets, with zeros."""
    n, k = matrix.numbers.shape
    panels, octets = -(-n // PANEL), -(-k // _OCTET)
    stored = np.full((panels * PANEL, octets * _OCTET), _ZERO[dtype], dtype=np.uint8)
    stored[:n, :k] = (matrix.numbers.astype(np.int16) + _ZERO[dtype]).astype(np.uint8)
    quads = stored.reshape(panels, PANEL, octets, 2, 4).transpose(0, 2, 3, 1, 4)
    numbers = quads if dtype == "int8" else quads[:, :, 0] | quads[:, :, 1] << np.uint8(4)
    numbers = np.ascontiguousarray(numbers).reshape(panels, -1)
    scales = np.zeros((panels * PANEL, matrix.scales.shape[1]), dtype=np.uint16)
    scales[:n] = matrix.scales
    heads = np.ascontiguousarray(scales.reshape(panels, PANEL, -1).transpose(0, 2, 1)).view(np.uint8)
    step = group // _OCTET * _OCTET_BYTES[dtype]
    parts = []
    for g in range(matrix.scales.shape[1]):
        parts += [heads[:, g], numbers[:, g * step : (g + 1) * step]]
    return np.concatenate(parts, axis=1).ravel()


def unpack(data: U8, dtype: str, n: int, k: int, group: int, name: str) -> Quantised:
    """Without the padding. Raises ValueError when `data` does not have the layout's size."""
    check_array(name, data, np.uint8, (quant_linear_bytes(dtype, n, k, group),))
    panels, octets, groups = -(-n // PANEL), -(-k // _OCTET), -(-k // group)
    rows = data.reshape(panels, -1)
    step = group // _OCTET * _OCTET_BYTES[dtype]
    heads, numbers = [], []
    for g in range(groups):
        start = g * (_SCALE_BYTES + step)
        heads.append(rows[:, start : start + _SCALE_BYTES])
        numbers.append(rows[:, start + _SCALE_BYTES : start + _SCALE_BYTES + step])
    scales = np.ascontiguousarray(np.stack(heads, axis=1)).view(np.uint16).transpose(0, 2, 1)
    packed = np.concatenate(numbers, axis=1)
    if dtype == "int8":
        quads = packed.reshape(panels, octets, 2, PANEL, 4)
    else:
        pairs = packed.reshape(panels, octets, 1, PANEL, 4)
        quads = np.concatenate([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=2)
    stored = quads.transpose(0, 3, 1, 2, 4).reshape(panels * PANEL, octets * _OCTET)
    signed = (stored.astype(np.int16) - _ZERO[dtype]).astype(np.int8)
    return Quantised(
        np.ascontiguousarray(signed[:n, :k]),
        np.ascontiguousarray(scales.reshape(panels * PANEL, groups)[:n]),
    )
