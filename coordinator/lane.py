"""Large calls one at a time, their callers in turn: what a caller sizes is paid by that caller's own wait."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager

from colibri.deadline import Deadline
from colibri.errors import Busy, DeadlineExpired

#: Calls that may wait in all, and of one caller.
MOST_WAITING = 32
MOST_OF_ONE = 8
_WAIT_S = 60.0


class Lane:
    """Thread-safe. A caller's calls go in their order; between callers the turn goes round."""

    def __init__(
        self,
        what: str,
        most_waiting: int = MOST_WAITING,
        most_of_one: int = MOST_OF_ONE,
        wait_s: float = _WAIT_S,
    ) -> None:
        self._what = what
        self._most_waiting = most_waiting
        self._most_of_one = most_of_one
        self._wait_s = wait_s
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[object]] = OrderedDict()
        self._running = False

    @contextmanager
    def turn(self, caller: str, deadline: Deadline) -> Iterator[None]:
        """Holds the lane. Raises Busy where too many wait, of all callers or of this one, and DeadlineExpired."""
        ticket = object()
        with self._changed:
            mine = self._waiting.get(caller, ())
            if len(mine) >= self._most_of_one:
                raise Busy(
                    f"{self._what}: {len(mine)} of this caller wait already; one is computed at a time",
                    retry_after_s=1.0,
                )
            if sum(map(len, self._waiting.values())) >= self._most_waiting:
                raise Busy(
                    f"{self._what}: {self._most_waiting} wait already; one is computed at a time",
                    retry_after_s=1.0,
                )
            self._waiting.setdefault(caller, deque()).append(ticket)
            try:
                came = self._changed.wait_for(lambda: self._is_next(ticket), deadline.bound(self._wait_s))
            finally:
                self._leave(caller, ticket)
            if not came:
                self._changed.notify_all()
                if deadline.expired():
                    raise DeadlineExpired(f"{self._what}: the call's time ended while others were computed")
                raise Busy(f"{self._what}: others took more than {self._wait_s:g} s", retry_after_s=1.0)
            self._running = True
        try:
            yield
        finally:
            with self._changed:
                self._running = False
                self._changed.notify_all()

    def _is_next(self, ticket: object) -> bool:
        return not self._running and next(iter(self._waiting.values()))[0] is ticket

    def _leave(self, caller: str, ticket: object) -> None:
        """The caller's next call, if any, goes behind those of all others."""
        mine = self._waiting[caller]
        mine.remove(ticket)
        if mine:
            self._waiting.move_to_end(caller)
        else:
            del self._waiting[caller]
