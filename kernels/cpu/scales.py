"""A look at the scales of packed matrices, whatever backend will compute with them."""

from __future__ import annotations

from colibri.kernels import _native
from colibri.kernels.api import PANEL, PackedLinear


def first_not_finite_scale(matrix: PackedLinear) -> tuple[int, int] | None:
    """(row, group) of the first scale, in the order of the data, that is NaN or Inf. Raises ValueError for extents that
    do not fit the data."""
    if not matrix.group:
        return None
    found = _native.first_not_finite_scale(matrix.data, matrix.dtype, matrix.n, matrix.k, matrix.group)
    if found < 0:
        return None
    line, column = divmod(found, PANEL)
    panel, group = divmod(line, -(-matrix.k // matrix.group))
    return panel * PANEL + column, group
