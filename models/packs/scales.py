"""Check that the scales of a pack's int8 and int4 matrices are finite.

A checksum only says that they are as packed, by whomever. Numbers of 8 and 4 bits need no check, and plain formats
are checked while packing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from colibri.errors import CheckpointError
from colibri.kernels.api import PANEL, PackedExpert, PackedLinear
from colibri.kernels.cpu.scales import first_not_finite_scale
from colibri.kernels.layout.packing import expert_matrices, packed_linear_bytes
from colibri.models.finite import spelt

#: Half a panel: gate and up rows alternate in runs of this many.
_RUN = PANEL // 2


@dataclass(slots=True)
class _Part:
    """A matrix from byte `begin` of the blob on. panels: how many were checked."""

    name: str
    matrix: PackedLinear
    begin: int
    panel_bytes: int
    panels: int = 0


class ScaleLook:
    """Checks the scales of one blob as its bytes arrive, in order, while they are in the core's cache.

    Scales lie scattered: reading them from memory once more took a twentieth of a load.
    """

    def __init__(self, content: PackedLinear | PackedExpert) -> None:
        if isinstance(content, PackedExpert):
            named = list(zip(("both", "down"), expert_matrices(content), strict=True))
        else:
            named = [("", content)]
        self._parts: list[_Part] = []
        self._found: tuple[str, int, int, int] | None = None
        begin = 0
        for name, matrix in named if content.group else ():
            panel = packed_linear_bytes(matrix.dtype, PANEL, matrix.k, matrix.group)
            self._parts.append(_Part(name, matrix, begin, panel))
            begin += matrix.data.nbytes

    def upto(self, end: int) -> None:
        """Says that the first `end` bytes have arrived."""
        for part in self._parts:
            whole = min(max(end - part.begin, 0), part.matrix.data.nbytes) // part.panel_bytes
            if whole > part.panels and self._found is None:
                self._found = _first(part, whole)
            part.panels = max(whole, part.panels)

    def check(self, where: str) -> None:
        """Raises CheckpointError, naming `where`, matrix, row and group of the first scale that is NaN or Inf."""
        if self._found is None:
            return
        name, row, group, bits = self._found
        if name == "both":
            panel, column = divmod(row, PANEL)
            name, row = "up" if column >= _RUN else "gate", panel * _RUN + column % _RUN
        at = f"scale [{row}, {group}]"
        raise CheckpointError.of(
            f"{where}: {name}" if name else where, at, "a finite value", spelt(bits, "bf16")
        )


def _first(part: _Part, end: int) -> tuple[str, int, int, int] | None:
    """Returns (name, row, group, bits) of the first scale that is not finite in panels part.panels to `end`,
    or None.
    """
    matrix = part.matrix
    data = matrix.data[part.panels * part.panel_bytes : end * part.panel_bytes]
    rows = (end - part.panels) * PANEL
    found = first_not_finite_scale(PackedLinear(matrix.dtype, rows, matrix.k, data, matrix.group))
    if found is None:
        return None
    row, group = found
    whole_group = packed_linear_bytes(matrix.dtype, PANEL, matrix.group, matrix.group)
    at = row // PANEL * part.panel_bytes + group * whole_group + row % PANEL * 2
    return part.name, part.panels * PANEL + row, group, int(data[at : at + 2].view(np.uint16)[0])
