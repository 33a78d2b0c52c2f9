"""Placement epochs a worker still serves."""

from __future__ import annotations

import threading

from colibri.errors import StaleEpoch


class Epochs:
    """Serves every epoch from `oldest` on: old and new placements side by side until the old is retired."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._oldest = 0

    @property
    def oldest(self) -> int:
        return self._oldest

    def retire_below(self, epoch: int) -> None:
        """Never goes back; 0 changes nothing."""
        with self._lock:
            self._oldest = max(self._oldest, epoch)

    def check(self, epoch: int) -> None:
        """Raises StaleEpoch, naming both."""
        if epoch < self._oldest:
            raise StaleEpoch(f"epoch: expected at least {self._oldest}, the oldest still served, got {epoch}")
