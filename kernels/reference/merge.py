"""The merge: terms of each row added in the given order, fp32, exactly as the contract says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colibri.kernels.api import F32, U32
from colibri.kernels.arithmetic.floats import to_f32
from colibri.kernels.checks.units import check_merge


def merge(parts: Sequence[F32], part: U32, index: U32, row_offsets: U32) -> F32:
    check_merge(parts, part, index, row_offsets)
    ends = row_offsets.astype(np.int64)
    merged = np.zeros((len(row_offsets) - 1, parts[0].shape[1]), dtype=np.float32)
    for row in range(len(merged)):
        for t in range(ends[row], ends[row + 1]):
            values = to_f32(parts[part[t]][index[t]])
            with np.errstate(over="ignore", invalid="ignore"):
                merged[row] = to_f32(merged[row] + values) if t > ends[row] else values
    return merged
