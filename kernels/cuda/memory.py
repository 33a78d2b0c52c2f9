"""A byte budget: counts what is held; its error names budget and need."""

from __future__ import annotations

import threading

from colibri.kernels.cuda.device import DeviceMemoryError


class MemoryBudget:
    """A budget. name: of the memory, for errors; limit: bytes."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._held = 0
        self._most = 0
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def held(self) -> int:
        return self._held

    @property
    def most(self) -> int:
        """The largest value that `held` has had."""
        return self._most

    def take(self, nbytes: int) -> None:
        """Takes bytes. Raises DeviceMemoryError, and takes nothing, if the budget does not hold them."""
        with self._lock:
            if self._held + nbytes > self._limit:
                raise DeviceMemoryError(
                    f"{self._name}: expected at most the budget of {self._limit} bytes, "
                    f"got {nbytes} more on top of {self._held}"
                )
            self._held += nbytes
            self._most = max(self._most, self._held)

    def give(self, nbytes: int) -> None:
        with self._lock:
            self._held -= nbytes
