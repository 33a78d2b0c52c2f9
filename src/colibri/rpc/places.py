"""Limit how many calls a server runs at once, and end calls whose peer keeps the server waiting.

A call holds a place and a thread from its headers to its end. Its peer controls three waits: until the message is
complete, until a reply is taken, and, after the end, until the rest is read. Each has a time bound. If all places
are taken, a call that still owes its message makes room for the next one.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from colibri.deadline import Clock
from colibri.errors import Busy

#: From a call's headers to its whole message, and between the messages of a stream. Slow lines need some seconds for
#: a long prompt.
MESSAGE_TIMEOUT_S = 10.0
#: A reply that its caller does not take for so long ends the call.
READER_TIMEOUT_S = 60.0
#: A connection that makes calls only to have them refused waits so long for each.
LATE_REFUSAL_S = 3.0
#: So long a call may owe its message before it makes room for another call of a connection that owes as many.
_PATIENCE_S = 1.0
#: Calls whose last reply waits for its reader, for each place; beyond that the oldest ends, once it waited so long.
_UNREAD_PER_PLACE = 2
_UNREAD_S = 1.0
_RETRY_AFTER_S = 0.1


class Wait(enum.Enum):
    """What a call waits for.

    NOTHING: the server's own work.
    MESSAGE: its peer owes a message.
    READER: its peer has not taken a reply.
    IDLE: nothing is owed and there is nothing to do; it makes room if that is needed, and stays otherwise.
    """

    NOTHING = enum.auto()
    MESSAGE = enum.auto()
    READER = enum.auto()
    IDLE = enum.auto()


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a peer may keep the server waiting, in seconds.

    message_s: for a message.
    reader_s: until it takes a reply.
    late_s: how late refusals are sent on a connection that asks for too many.
    """

    message_s: float = MESSAGE_TIMEOUT_S
    reader_s: float = READER_TIMEOUT_S
    late_s: float = LATE_REFUSAL_S


class Place:
    """The place of one call. Its thread says here what it waits for. Made by Places.enter."""

    __slots__ = ("_places", "caller", "connection", "cut", "given_up", "over", "since", "wait")

    def __init__(
        self, places: Places, connection: str, caller: str, cut: Callable[[], object], since: float
    ) -> None:
        self._places = places
        self.connection = connection
        self.caller = caller
        self.cut = cut
        self.since = since
        self.wait = Wait.MESSAGE
        self.given_up = False
        self.over = False

    def waits(self, wait: Wait) -> None:
        """Says what the call waits for. Raises Busy if its place went to another call before its message came."""
        self._places.note(self, wait)

    def leave(self) -> None:
        """Says that the call's thread is done. A reply may still be on its way."""
        self._places.leave(self)


class Places:
    """The places of a server. Thread-safe.

    name: of the server, in refusals.
    limit: calls at once.
    """

    def __init__(
        self, name: str, limit: int, bounds: Bounds | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._name = name
        self._limit = limit
        #: One caller leaves an eighth to the others.
        self._caller_limit = max(1, limit - max(1, limit // 8))
        self._bounds = bounds or Bounds()
        self._clock = clock
        self._lock = threading.Lock()
        self._taken: dict[Place, None] = {}
        self._callers: Counter[str] = Counter()
        self._unread: dict[Place, None] = {}

    def enter(self, context: grpc.ServicerContext, caller: str = "") -> Place:
        """Takes a place for a call that owes its message. Raises Busy.

        caller: who calls; empty: unknown.
        """
        loser: Place | None = None
        place = Place(self, context.peer(), caller, context.cancel, self._clock())
        with self._lock:
            if caller and self._callers[caller] >= self._caller_limit:
                raise self._busy(
                    f"this caller has {self._caller_limit} calls open, the most that one caller may have of "
                    f"{self._limit}"
                )
            if len(self._taken) >= self._limit:
                loser = self._makes_room_for(place)
                if loser is None:
                    raise self._busy(f"{self._limit} calls run already, the limit of this server")
                self._give_up(loser)
            self._taken[place] = None
            if caller:
                self._callers[caller] += 1
        if loser is not None:
            loser.cut()
        if not context.add_callback(lambda: self._over(place)):
            place.over = True
        return place

    def note(self, place: Place, wait: Wait) -> None:
        with self._lock:
            if place.given_up and place.wait is Wait.MESSAGE:
                raise self._busy("its place went to another call before the message of this one came")
            place.wait = wait
            place.since = self._clock()

    def leave(self, place: Place) -> None:
        loser: Place | None = None
        with self._lock:
            self._release(place)
            if place.wait is Wait.NOTHING and not place.over:
                place.since = self._clock()
                self._unread[place] = None
                if len(self._unread) > self._limit * _UNREAD_PER_PLACE:
                    loser = next(iter(self._unread))
                    if place.since - loser.since < _UNREAD_S:
                        loser = None
                    else:
                        del self._unread[loser]
        if loser is not None:
            loser.cut()

    def sweep(self) -> int:
        """Ends the calls whose peers kept the server waiting too long. Returns how many."""
        now, bounds = self._clock(), self._bounds
        with self._lock:
            late = [
                place
                for place in self._taken
                if (place.wait is Wait.MESSAGE and now - place.since > bounds.message_s)
                or (place.wait is Wait.READER and now - place.since > bounds.reader_s)
            ]
            unread = [place for place in self._unread if now - place.since > bounds.reader_s]
            for place in late:
                self._give_up(place)
            for place in unread:
                del self._unread[place]
        for place in (*late, *unread):
            place.cut()
        return len(late) + len(unread)

    @property
    def taken(self) -> int:
        with self._lock:
            return len(self._taken)

    @property
    def unread(self) -> int:
        """Calls that have ended here but whose last reply the caller has not taken."""
        with self._lock:
            return len(self._unread)

    def _makes_room_for(self, newcomer: Place) -> Place | None:
        """Returns the call that must make room, or None: the one that has waited longest for its peer, on the
        connection with most such calls.

        None if that is the newcomer's own connection and no call of it has waited long.
        """
        waiting = [place for place in self._taken if place.wait in (Wait.MESSAGE, Wait.IDLE)]
        if not waiting:
            return None
        owing = Counter(place.connection for place in waiting)
        most = max(owing.values())
        loser = min(
            (place for place in waiting if owing[place.connection] == most), key=lambda place: place.since
        )
        if most > owing[newcomer.connection] or newcomer.since - loser.since >= _PATIENCE_S:
            return loser
        return None

    def _give_up(self, place: Place) -> None:
        place.given_up = True
        self._release(place)

    def _release(self, place: Place) -> None:
        if place not in self._taken:
            return
        del self._taken[place]
        if place.caller:
            self._callers[place.caller] -= 1
            if not self._callers[place.caller]:
                del self._callers[place.caller]

    def _over(self, place: Place) -> None:
        # On grpc's event thread: the last reply was taken, or the peer is gone.
        with self._lock:
            place.over = True
            self._unread.pop(place, None)

    def _busy(self, why: str) -> Busy:
        return Busy(f"{self._name}: {why}", peer=self._name, retry_after_s=_RETRY_AFTER_S)
