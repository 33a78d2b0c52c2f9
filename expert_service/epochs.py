"""The placement epochs that a worker serves, and how far they may move."""

from __future__ import annotations

import threading

from colibri.errors import InvalidInput, StaleEpoch

#: How far beyond the newest epoch that a caller has named the next one may lie. A deployment counts its changes one by
#: one: a worker that was away for a million of them is started anew.
AHEAD = 1 << 20
#: Of the first epoch that a worker hears of.
MOST_FIRST = (1 << 32) - 1


class Epochs:
    """Serves every epoch from `oldest` on: old and new placements side by side until the old one is retired.
    Thread-safe.

    Load, Retire and requests name epochs. None may lie far beyond those before it, so that one wrong number does
    not make the worker refuse everything after it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._oldest = 0
        self._newest = 0

    @property
    def oldest(self) -> int:
        return self._oldest

    @property
    def newest(self) -> int:
        """The newest epoch that a caller has named; 0: none has."""
        return self._newest

    def serve_from(self, epoch: int) -> None:
        """Serves again what was retired from `epoch` on; 0 changes nothing."""
        with self._lock:
            if epoch and epoch < self._oldest:
                self._oldest = self._newest = epoch

    def check(self, epoch: int) -> None:
        """Checks a request's epoch; changes nothing. Raises StaleEpoch, naming both, or InvalidInput if it is too far
        ahead.
        """
        if epoch < self._oldest:
            raise StaleEpoch(f"epoch: expected at least {self._oldest}, the oldest still served, got {epoch}")
        if epoch > self._newest:
            self._check_ahead(epoch, "epoch")

    def name(self, epoch: int) -> None:
        """Notes a checked epoch of a well-formed call: later epochs are measured from it."""
        if epoch > self._newest:
            with self._lock:
                self._newest = max(self._newest, epoch)

    def check_retire(self, epochs_below: int) -> None:
        """Checks the epoch of a Retire; changes nothing. Raises InvalidInput if it is too far ahead."""
        self._check_ahead(epochs_below, "epochs_below")

    def retire_below(self, epoch: int) -> None:
        """Retires all epochs below a checked one. Never goes back; 0 changes nothing."""
        with self._lock:
            self._oldest = max(self._oldest, epoch)
            self._newest = max(self._newest, epoch)

    def _check_ahead(self, epoch: int, field: str) -> None:
        newest = self._newest
        most = newest + AHEAD if newest else MOST_FIRST
        if epoch > most:
            why = f", {AHEAD} beyond the newest that was named ({newest})" if newest else ""
            raise InvalidInput(field, f"at most {most}{why}", epoch)
