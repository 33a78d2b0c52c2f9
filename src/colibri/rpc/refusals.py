"""Refuse calls before they take a place: at once, or late if their connection asks too often.

A late refusal holds no thread. The call is kept, and its stream counts against those that the connection may open.
So a peer that opens calls only to be refused is slowed down. Other peers, and callers that err now and then, notice
nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from colibri.deadline import Clock
from colibri.errors import ColibriError
from colibri.rpc.status import set_error

#: Refusals of one connection that are told at once: so many in a row, and so many a second after that; others late.
_AT_ONCE, _PER_SECOND = 20.0, 2.0
#: Calls that are kept so; beyond that refusals are told at once again.
_KEPT = 4096
#: Connections whose budgets are known; beyond that those that asked longest ago are forgotten.
_CONNECTIONS = 4096

#: Sends a reply of a call, or, None, its end. grpc's, for behaviours that do not block.
Send = Callable[[object], None]


@dataclass(frozen=True, slots=True)
class _Kept:
    due: float
    context: grpc.ServicerContext
    send: Send


class Refusals:
    """Thread-safe. Call `tell_late` several times a second. late_s: how late a late refusal is, seconds."""

    def __init__(self, late_s: float, clock: Clock = time.monotonic) -> None:
        self._late_s = late_s
        self._clock = clock
        self._lock = threading.Lock()
        self._budgets: dict[str, tuple[float, float]] = {}
        self._kept: deque[_Kept] = deque()

    def refuse(self, context: grpc.ServicerContext, error: ColibriError, send: Send) -> None:
        """Ends the call with the error, now or later."""
        set_error(context, error)
        with self._lock:
            now = self._clock()
            if not self._within_budget(context.peer(), now) and len(self._kept) < _KEPT:
                self._kept.append(_Kept(now + self._late_s, context, send))
                return
        send(None)

    def tell_late(self) -> int:
        """Ends the calls whose time has come. Returns how many."""
        with self._lock:
            now = self._clock()
            due: list[_Kept] = []
            while self._kept and self._kept[0].due <= now:
                due.append(self._kept.popleft())
        for kept in due:
            kept.send(None)
        return len(due)

    @property
    def kept(self) -> int:
        with self._lock:
            return len(self._kept)

    def _within_budget(self, connection: str, now: float) -> bool:
        left, since = self._budgets.pop(connection, (_AT_ONCE, now))
        left = min(_AT_ONCE, left + (now - since) * _PER_SECOND)
        allowed = left >= 1.0
        self._budgets[connection] = (left - 1.0 if allowed else left, now)
        if len(self._budgets) > _CONNECTIONS:
            del self._budgets[next(iter(self._budgets))]
        return allowed
