"""Packed int8 and int4 matrices read number by number, from the words of docs/numerics.md, and inputs for them."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import PackedExpert

from .support import Array, as_float64, wide_range

FORMATS = [(dtype, group) for dtype in ("int8", "int4") for group in (32, 64, 128)]
#: Ordinary; many magnitudes; pairs that cancel; products that are subnormal; numbers at the ends of their range; zeros.
KINDS = ("ordinary", "wide", "cancelling", "tiny", "saturating", "zero")

Numbers = tuple[Array, Array]  # int64 [n, k], fp32 scales [n, groups]


def draw(rng: np.random.Generator, kind: str, rows: int, k: int) -> Array:
    """float64 [rows, k]."""
    x = rng.standard_normal((rows, k))
    if kind == "wide":
        return wide_range(rng, (rows, k))
    if kind == "cancelling":
        x[:, 1::2] = -x[:, : k - k % 2 : 2] * (1 + 2.0**-9 * rng.integers(-1, 2, (rows, k // 2)))
    elif kind == "tiny":
        x *= np.exp2(rng.integers(-126, -50, (rows, 1)))
    elif kind == "saturating":
        x = np.sign(x) * 3e3
        x[rng.random(x.shape) < 0.05] /= 3
    elif kind == "zero":
        x[rng.random(x.shape) < 0.9] = 0
        x[:: max(1, rows // 2)] = 0
    return x


def read(data: Array, dtype: str, n: int, k: int, group: int) -> Numbers:
    zero, bits = (128, 8) if dtype == "int8" else (8, 4)
    whole = 64 + 32 * group * bits // 8
    groups = -(-k // group)
    last = 64 + 32 * (-(-(k - (groups - 1) * group) // 8) * 8) * bits // 8
    panel = (groups - 1) * whole + last
    assert data.dtype == np.uint8
    assert data.size == -(-n // 32) * panel
    numbers = np.zeros((n, k), dtype=np.int64)
    scales = np.zeros((n, groups), dtype=np.uint16)
    for row in range(n):
        for g in range(groups):
            start = row // 32 * panel + g * whole
            at = start + row % 32 * 2
            scales[row, g] = int(data[at]) | int(data[at + 1]) << 8
            for i in range(min(group, k - g * group)):
                if dtype == "int8":
                    stored = int(data[start + 64 + (i // 4 * 32 + row % 32) * 4 + i % 4])
                else:
                    stored = int(data[start + 64 + (i // 8 * 32 + row % 32) * 4 + i % 4])
                    stored = stored >> 4 if i % 8 >= 4 else stored & 15
                numbers[row, g * group + i] = stored - zero
    return numbers, as_float64(scales).astype(np.float32)


def read_expert(expert: PackedExpert) -> tuple[Numbers, Numbers, Numbers]:
    """gate, up [ffn, hidden], down [hidden, ffn]."""
    hidden, ffn, dtype, group = expert.hidden, expert.ffn, expert.dtype, expert.group
    padded = -(-ffn // 16) * 16
    bits = 8 if dtype == "int8" else 4
    panel = -(-hidden // group) * 64 + 32 * (-(-hidden // 8) * 8) * bits // 8
    size = padded // 16 * panel
    both = read(expert.data[:size], dtype, 2 * padded, hidden, group)
    down = read(expert.data[size:], dtype, hidden, padded, group)
    assert not down[0][:, ffn:].any()
    at = np.array([row // 16 * 32 + row % 16 for row in range(ffn)])
    gate, up = ((both[0][rows], both[1][rows]) for rows in (at, at + 16))
    return gate, up, (down[0][:, :ffn], down[1])


def values(matrix: Numbers, group: int) -> Array:
    """float64 [n, k]."""
    numbers, scales = matrix
    return numbers * np.repeat(scales.astype(np.float64), group, axis=1)[:, : numbers.shape[1]]
