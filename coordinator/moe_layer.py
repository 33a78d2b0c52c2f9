"""What the coordinator needs of an MoE layer; colibri.router_service.router.MoeRouter provides it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from colibri.deadline import Deadline
from colibri.errors import ColibriError
from colibri.kernels.api import F32, Array


class MoeResult(Protocol):
    @property
    def rows(self) -> F32:
        """fp32 [rows, hidden], merged in slot order, without the residual. A failed row's content means nothing."""
        ...

    @property
    def failed(self) -> Mapping[int, ColibriError]:
        """Why each failed row failed; the other rows are right."""
        ...


class MoeLayer(Protocol):
    def forward(self, layer: int, x: Array, deadline: Deadline | None = None, priority: int = 0) -> MoeResult:
        """Computes one layer, within a bounded time. Raises ColibriError.

        x: [rows, hidden] in the mode's row dtype, after the layer's second norm.
        """
        ...
