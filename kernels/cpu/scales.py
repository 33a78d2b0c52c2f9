"""Check the scales of packed matrices, whatever backend will compute with them."""

from __future__ import annotations

from colibri.kernels import _native
from colibri.kernels.api import PANEL, PackedLinear


def first_not_finite_scale(matrix: PackedLinear) -> tuple[int, int] | None:
    """Returns (row, group) of the first scale that is NaN or Inf, in the order of the data, or None.

    Raises ValueError if the extents do not fit the data.
    """
    if not matrix.group:
        return None
    found = _native.first_not_finite_scale(matrix.data, matrix.dtype, matrix.n, matrix.k, matrix.group)
    if found < 0:
        return None
    line, column = divmod(found, PANEL)
    panel, group = divmod(line, -(-matrix.k // matrix.group))
    return panel * PANEL + column, group
