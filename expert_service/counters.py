"""What a worker has done since it started."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests by their end, and rows of those done."""

    done: int = 0
    refused: int = 0
    expired: int = 0
    cancelled: int = 0
    rows: int = 0


class Counters:
    """Thread-safe; `counts` is one consistent state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()

    @property
    def counts(self) -> Counts:
        return self._counts

    def done(self, rows: int) -> None:
        with self._lock:
            counts = self._counts
            self._counts = replace(counts, done=counts.done + 1, rows=counts.rows + rows)

    def refused(self) -> None:
        with self._lock:
            self._counts = replace(self._counts, refused=self._counts.refused + 1)

    def expired(self) -> None:
        with self._lock:
            self._counts = replace(self._counts, expired=self._counts.expired + 1)

    def cancelled(self, requests: int = 1) -> None:
        with self._lock:
            self._counts = replace(self._counts, cancelled=self._counts.cancelled + requests)
