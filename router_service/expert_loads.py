"""How many rows each expert was chosen for: what placements are planned by."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import Array, GateResult

#: So many ids are kept before they are counted: counting costs as much as adding hundreds of them.
_KEPT = 1024


class ExpertLoads:
    """Thread-safe. Sums since the start; a row counts once for each of its experts, a bad row not at all."""

    def __init__(self, layers: int, experts: int) -> None:
        self._experts = experts
        self._lock = threading.Lock()
        self._counts = np.zeros((layers, experts), np.int64)
        self._kept: list[list[Array]] = [[] for _ in range(layers)]
        self._rows = [0] * layers

    def add(self, layer: int, gate: GateResult) -> None:
        """gate: of one layer's batch."""
        experts = gate.experts
        if not gate.ok.all():
            experts = experts[gate.ok]
        with self._lock:
            self._kept[layer].append(experts)
            self._rows[layer] += experts.size
            if self._rows[layer] >= _KEPT:
                self._count(layer)

    def snapshot(self) -> NDArray[np.int64]:
        """[layers, experts]"""
        with self._lock:
            for layer in range(len(self._kept)):
                self._count(layer)
            return self._counts.copy()

    def _count(self, layer: int) -> None:
        kept, self._kept[layer], self._rows[layer] = self._kept[layer], [], 0
        if kept:
            ids = np.concatenate([experts.ravel() for experts in kept])
            self._counts[layer] += np.bincount(ids, minlength=self._experts)
