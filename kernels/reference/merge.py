"""The merge: terms of each row added in the given order, fp32, exactly as the contract says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colibri.kernels.api import F32, U32
from colibri.kernels.reference.checks import check_array
from colibri.kernels.reference.floats import to_f32


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


def check_merge(parts: Sequence[F32], part: U32, index: U32, row_offsets: U32) -> None:
    """Raises TypeError or ValueError naming the argument that is wrong."""
    if not parts:
        raise ValueError("parts: expected at least one array, got none")
    check_array("parts[0]", parts[0], np.float32, ("units", "hidden"))
    hidden = parts[0].shape[1]
    for number, array in enumerate(parts):
        check_array(f"parts[{number}]", array, np.float32, ("units", hidden))
    check_array("part", part, np.uint32, ("terms",))
    check_array("index", index, np.uint32, part.shape)
    check_array("row_offsets", row_offsets, np.uint32, ("rows + 1",))
    ends = row_offsets.astype(np.int64)
    if len(ends) == 0 or ends[0] != 0 or ends[-1] != len(part) or np.any(np.diff(ends) < 0):
        raise ValueError(
            f"row_offsets: expected 0 ascending to {len(part)} (terms), got {row_offsets.tolist()}"
        )
    for term, (source, unit) in enumerate(zip(part, index, strict=True)):
        if source >= len(parts):
            raise ValueError(f"part[{term}]: expected 0 .. {len(parts) - 1} (parts), got {source}")
        units = len(parts[source])
        if unit >= units:
            raise ValueError(f"index[{term}]: expected 0 .. {units - 1} (units of part {source}), got {unit}")
