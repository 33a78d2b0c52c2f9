"""Large calls one at a time, their callers in turn: what a caller sizes is paid by that caller's own wait."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from colibri.deadline import Deadline
from colibri.errors import Busy, Cancelled, DeadlineExpired
from colibri.security.caller import caller_of

#: Calls that may wait in all, and of one caller.
MOST_WAITING = 32
MOST_OF_ONE = 8
_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Waiter:
    """Who waits for a turn.

    caller: callers take turns; those of one caller go in their order.
    deadline: ends the wait.
    on_leaving: registers what to call when the client leaves; False when it has left already, as
        grpc.ServicerContext.add_callback.
    """

    caller: str
    deadline: Deadline = Deadline()  # noqa: RUF009 - frozen
    on_leaving: Callable[[Callable[[], None]], bool] = lambda wake: True

    @classmethod
    def of(cls, context: grpc.ServicerContext, deadline: Deadline) -> Waiter:
        """The caller of a call that is served. Callers that show nothing are told apart by their connections."""
        return cls(caller_of(context) or str(context.peer()), deadline, context.add_callback)


class _Ticket:
    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = False


class Turns:
    """Thread-safe. A caller's calls go in their order; between callers the turn goes round.

    what: names the work in errors.
    most_waiting, most_of_one: calls that may wait, in all and of one caller.
    wait_s: longest wait for a turn, seconds.
    """

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
        self._waiting: OrderedDict[str, deque[_Ticket]] = OrderedDict()
        self._running = False

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        with self._changed:
            return sum(map(len, self._waiting.values()))

    @contextmanager
    def turn(self, waiter: Waiter) -> Iterator[None]:
        """Waits for the turn and holds it.

        Raises Busy where too many wait, of all callers or of this one, or where the wait takes too long;
        DeadlineExpired; Cancelled when the client leaves while it waits.
        """
        ticket = _Ticket()

        def leave() -> None:
            with self._changed:
                ticket.left = True
                self._changed.notify_all()

        if not waiter.on_leaving(leave):
            ticket.left = True
        with self._changed:
            self._join(waiter.caller, ticket)
            try:
                self._changed.wait_for(
                    lambda: ticket.left or self._is_next(ticket), waiter.deadline.bound(self._wait_s)
                )
                came = not ticket.left and self._is_next(ticket)
            finally:
                self._leave(waiter.caller, ticket)
            if not came:
                self._changed.notify_all()
                raise self._did_not_come(ticket, waiter.deadline)
            self._running = True
        try:
            yield
        finally:
            with self._changed:
                self._running = False
                self._changed.notify_all()

    def _join(self, caller: str, ticket: _Ticket) -> None:
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

    def _did_not_come(self, ticket: _Ticket, deadline: Deadline) -> Busy | Cancelled | DeadlineExpired:
        if ticket.left:
            return Cancelled(f"{self._what}: the client left while others were computed")
        if deadline.expired():
            return DeadlineExpired(f"{self._what}: the call's time ended while others were computed")
        return Busy(f"{self._what}: others took more than {self._wait_s:g} s", retry_after_s=1.0)

    def _is_next(self, ticket: _Ticket) -> bool:
        return not self._running and next(iter(self._waiting.values()))[0] is ticket

    def _leave(self, caller: str, ticket: _Ticket) -> None:
        """Leaves the queue. The caller's next call, if any, goes behind those of all others."""
        mine = self._waiting[caller]
        mine.remove(ticket)
        if mine:
            self._waiting.move_to_end(caller)
        else:
            del self._waiting[caller]
