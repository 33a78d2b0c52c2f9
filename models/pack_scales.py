"""Scales of a pack's int8 and int4 matrices must be finite. A checksum only says that they are what was packed, and by
whom is not known; numbers of 8 and 4 bits need no such look, and plain formats are checked while packing."""

from __future__ import annotations

import numpy as np

from colibri.errors import CheckpointError
from colibri.kernels.api import PANEL, PackedExpert, PackedLinear
from colibri.kernels.reference.packing import expert_matrices, packed_linear_bytes
from colibri.models.finite import spelt

#: Half a panel: gate and up rows alternate in runs of this many.
_RUN = PANEL // 2
_NOT_FINITE, _NEGATIVE_NOT_FINITE = 0x7F80, 0xFF80


def check_linear_scales(matrix: PackedLinear, where: str) -> None:
    """Raises CheckpointError naming `where`, row and group of the first scale that is NaN or Inf."""
    found = _first(matrix)
    if found is not None:
        row, group, bits = found
        raise CheckpointError.of(where, f"scale [{row}, {group}]", "a finite value", spelt(bits, "bf16"))


def check_expert_scales(expert: PackedExpert, where: str) -> None:
    """As check_linear_scales, naming the matrix of the expert, too."""
    both, down = expert_matrices(expert)
    found = _first(both)
    if found is not None:
        row, group, bits = found
        panel, column = divmod(row, PANEL)
        name, row = "up" if column >= _RUN else "gate", panel * _RUN + column % _RUN
        at = f"scale [{row}, {group}]"
        raise CheckpointError.of(f"{where}: {name}", at, "a finite value", spelt(bits, "bf16"))
    check_linear_scales(down, f"{where}: down")


def _first(matrix: PackedLinear) -> tuple[int, int, int] | None:
    """(row, group, bits) of the first scale in the order of the data that is not finite."""
    if not matrix.group:
        return None
    panel = packed_linear_bytes(matrix.dtype, PANEL, matrix.k, matrix.group)
    whole_group = packed_linear_bytes(matrix.dtype, PANEL, matrix.group, matrix.group)
    shape = (-(-matrix.n // PANEL), -(-matrix.k // matrix.group))
    # One copy in lines of the cache, then whole vectors: five times as quick as looking at them where they are.
    lines = np.ndarray(shape, f"V{2 * PANEL}", matrix.data, 0, (panel, whole_group))
    scales = np.ascontiguousarray(lines).reshape(-1).view(np.uint16)
    if scales.view(np.int16).max() < _NOT_FINITE and scales.max() < _NEGATIVE_NOT_FINITE:
        return None
    first = int(np.flatnonzero((scales & _NOT_FINITE) == _NOT_FINITE)[0])
    at, group, column = (int(i) for i in np.unravel_index(first, (*shape, PANEL)))
    return at * PANEL + column, group, int(scales[first])
