"""Count the rows that choose each expert. Placements are planned by these loads."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import GateResult

#: So many ids are kept before they are counted: counting costs as much as adding hundreds of them.
_KEPT = 1024


class ExpertLoads:
    """Sums since the start. A row counts once for each of its experts; a bad row does not count. Thread-safe."""

    def __init__(self, layers: int, experts: int) -> None:
        self._experts = experts
        self._lock = threading.Lock()
        self._counts = np.zeros((layers, experts), np.int64)
        self._kept: list[list[GateResult]] = [[] for _ in range(layers)]
        self._ids = [0] * layers

    def add(self, layer: int, gate: GateResult) -> None:
        """Counts one layer's batch. The arrays of `gate` are read later and must not change."""
        with self._lock:
            self._kept[layer].append(gate)
            self._ids[layer] += gate.experts.size
            if self._ids[layer] >= _KEPT:
                self._count(layer)

    def snapshot(self) -> NDArray[np.int64]:
        """Returns the counts, int64 [layers, experts]."""
        with self._lock:
            for layer in range(len(self._kept)):
                self._count(layer)
            return self._counts.copy()

    def _count(self, layer: int) -> None:
        kept, self._kept[layer], self._ids[layer] = self._kept[layer], [], 0
        if kept:
            chosen = np.concatenate([gate.experts for gate in kept])
            good = np.concatenate([gate.ok for gate in kept])
            self._counts[layer] += np.bincount(chosen[good].ravel(), minlength=self._experts)
