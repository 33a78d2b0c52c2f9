"""What a worker has done since it started."""

from __future__ import annotations

import threading
from typing import NamedTuple


class Counts(NamedTuple):
    """Requests by how they ended, and the rows of those that were computed."""

    done: int
    refused: int
    expired: int
    cancelled: int
    rows: int


class Counters:
    """Thread-safe. `counts` is one consistent state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done = self._refused = self._expired = self._cancelled = self._rows = 0

    @property
    def counts(self) -> Counts:
        with self._lock:
            return Counts(self._done, self._refused, self._expired, self._cancelled, self._rows)

    def done(self, rows: int) -> None:
        with self._lock:
            self._done += 1
            self._rows += rows

    def refused(self) -> None:
        with self._lock:
            self._refused += 1

    def expired(self) -> None:
        with self._lock:
            self._expired += 1

    def cancelled(self, requests: int = 1) -> None:
        with self._lock:
            self._cancelled += requests
