"""Count changes of what a worker holds or serves, and wait for the next one within a bound."""

from __future__ import annotations

import threading
from collections.abc import Callable

#: Callers that may wait at once; the next one is answered at once.
_MOST_WAITING = 4


class StateNews:
    """Thread-safe. `number` starts at 1."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = 0
        self._ended = False
        self.number = 1

    def changed(self) -> None:
        with self._changed:
            self.number += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Ends all waits, now and later."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def look(self) -> None:
        """Makes every waiting caller check whether its wait is still useful."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, seen: int, timeout_s: float, of_use: Callable[[], bool]) -> None:
        """Returns when `number` differs from `seen`, after `timeout_s` seconds, or when `of_use` says that waiting is
        useless.
        """
        with self._changed:
            if self._waiting >= _MOST_WAITING:
                return
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._ended or self.number != seen or not of_use(), timeout_s)
            finally:
                self._waiting -= 1
