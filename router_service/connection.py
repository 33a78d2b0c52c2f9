"""One worker's stream shared by several threads: every message has an inbox of its own.

Whoever waits first reads the link for all and hands others their answers; when it has its own, the next
waiter reads on. So an answer reaches a lone caller without passing through a thread in between.
"""

from __future__ import annotations

import threading
import time
from _thread import LockType, allocate_lock
from collections.abc import Callable

from colibri.deadline import Clock, Deadline
from colibri.errors import Busy, ColibriError, DeadlineExpired, FrameError, InvalidInput, WorkerLost
from colibri.placement import WorkerEndpoint
from colibri.router_service.replies import REPLY_KINDS
from colibri.transport.link import Link, LinkKind
from colibri.v1 import expert_pb2
from colibri.wire.chunks import Reassembler, message_frames
from colibri.wire.frame import Frame, read_frame, verify, write_frame
from colibri.wire.header import Header
from colibri.wire.limits import FrameLimits
from colibri.wire.units import check_result

#: Messages of one stream that may wait for their answers; one more is Busy.
MAX_IN_FLIGHT = 256

#: (correlation id, attempt)
Key = tuple[int, int]


class SendTimeout(WorkerLost):
    """The link lives but took no whole message in time: its peer hangs, or is flooded."""


class Message:
    """A request under way: one attempt at one dispatch. Its fields belong to its connection's lock.

    done: it has its answer or its failure; sent_at: when its sending began; due_at: until when its sender gives it, 0:
    not said; done_at: when its answer was read, or its failure known.
    """

    __slots__ = ("done", "done_at", "due_at", "error", "key", "reply", "sent_at", "units", "wake")

    def __init__(self, key: Key, units: int) -> None:
        self.key = key
        self.units = units
        self.done = False
        self.sent_at = 0.0
        self.due_at = 0.0
        self.done_at = 0.0
        self.reply: Frame | None = None
        self.error: ColibriError | None = None
        self.wake: LockType | None = None


class Connection:
    """A live link to one incarnation of a worker. Once lost it is never read again and all its messages have
    failed.

    on_end: called once, when the connection ends, with it and the reason, on whatever thread noticed; on_close: then,
    to free what lies under the link. on_late: called for each answer that nobody waits
    for. rows_sent: since the start.
    """

    def __init__(
        self,
        endpoint: WorkerEndpoint,
        link: Link,
        limits: FrameLimits,
        max_rows: int,
        *,
        on_close: Callable[[], None] = lambda: None,
        on_end: Callable[[Connection, ColibriError], None] = lambda connection, error: None,
        on_late: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.endpoint = endpoint
        self.max_rows = max_rows
        self.rows_sent = 0
        self._link = link
        self._limits = limits
        self._on_close = on_close
        self._on_end = on_end
        self._on_late = on_late
        self._clock = clock
        self._lock = threading.Lock()
        self._in_flight: dict[Key, Message] = {}
        self._reading = False
        self._lost: ColibriError | None = None
        self._newest = 0
        self._heard_at = clock()
        self._reassembler = Reassembler(MAX_IN_FLIGHT, MAX_IN_FLIGHT * limits.max_reply_bytes)

    @property
    def peer(self) -> str:
        return self.endpoint.name

    @property
    def link_kind(self) -> LinkKind:
        return self._link.kind

    @property
    def lost(self) -> ColibriError | None:
        """Why the connection ended; None while it lives."""
        return self._lost

    def check(self) -> None:
        """Ends the connection if its link is dead, though nobody uses it now."""
        lost = self._link.lost
        if lost is not None:
            self.fail(WorkerLost(lost, peer=self.peer))

    def send(self, header: Header, tensor: bytes | memoryview, deadline: Deadline, wait_s: float) -> Message:
        """Sends a FORWARD; `wait` for its answer, or `abandon` it.

        (correlation_id, attempt) is unique on this stream, correlation_id above 0. Raises the connection's error
        when it is lost, Busy when too many messages wait, DeadlineExpired when the deadline ends before the link
        took it all, SendTimeout when it did not within `wait_s` seconds.
        """
        message = Message((header.correlation_id, header.attempt), header.units)
        with self._lock:
            if self._lost is not None:
                raise self._lost.with_traceback(None)
            if len(self._in_flight) >= MAX_IN_FLIGHT:
                raise Busy(f"{self.peer}: {MAX_IN_FLIGHT} messages wait for answers already", peer=self.peer)
            self._in_flight[message.key] = message
            if header.correlation_id > self._newest:
                self._newest = header.correlation_id
            self.rows_sent += header.rows
            message.sent_at = self._clock()
        try:
            for parts in message_frames(header, tensor):
                self._link.send(parts, deadline.bound(wait_s, self._clock))
        except WorkerLost as error:
            self.fail(error)
            raise
        except BaseException as error:
            # Part of the message may have left: the worker can never complete it, but forgets it on CANCEL.
            self.abandon(message)
            if isinstance(error, DeadlineExpired) and not deadline.expired(self._clock):
                raise SendTimeout(error.message, peer=self.peer) from error
            raise
        return message

    def wait(self, message: Message, until: float) -> bool:
        """Whether the message has its answer, or its failure, by `until` (of the clock); reads what is there in any
        case. It stays under way."""
        try:
            while not message.done:
                self._read_or_wait(message, until)
                if not message.done and self._clock() >= until:
                    return False
        except BaseException:
            self.abandon(message)
            raise
        finally:
            # This thread read, or was woken to read and needs it no more: the next one must.
            if self._in_flight:
                self._hand_over()
        return True

    def is_hung(self, message: Message, now: float) -> bool:
        """Whether a message that is overdue shows that the peer hangs: nothing has come since it was sent, and it does
        not stand behind another, perhaps a big one of another thread, that still has time."""
        if self._heard_at >= message.sent_at:
            return False
        with self._lock:
            return not any(
                other.sent_at <= message.sent_at and now < other.due_at for other in self._in_flight.values()
            )

    def time_out(self, message: Message) -> None:
        """No answer came in all the time it was given. If nothing at all came since it was sent, the peer hangs or is
        cut off, and the connection ends; else the message alone fails."""
        waited = self._clock() - message.sent_at
        error = WorkerLost(f"{self.peer}: no answer within {waited:.1f} s", peer=self.peer)
        if self._heard_at < message.sent_at:
            self.fail(error)
        else:
            self._settle(message, None, error)
            self._cancel(message)

    def abandon(self, message: Message) -> None:
        """Nobody waits any more: a late answer is dropped, and the worker is told, without waiting."""
        self._settle(message, None, DeadlineExpired(f"{self.peer}: given up", peer=self.peer))
        if self._lost is None:
            self._cancel(message)

    def fail(self, error: ColibriError) -> None:
        """Ends the connection: every message in flight fails at once with `error`."""
        with self._lock:
            if self._lost is not None:
                return
            self._lost = error
            messages = list(self._in_flight.values())
            self._in_flight.clear()
            wakes = []
            now = self._clock()
            for message in messages:
                message.error = error
                message.done_at = now
                message.done = True
                wakes.append(message.wake)
                message.wake = None
        for wake in wakes:
            if wake is not None:
                wake.release()
        # First of all the routes change: closing may take a moment.
        self._on_end(self, error)
        self._link.close()
        self._on_close()

    def close(self) -> None:
        self.fail(WorkerLost(f"{self.peer}: the router closed the connection", peer=self.peer))

    def _read_or_wait(self, message: Message, until: float) -> None:
        """Reads the link if nobody does, else sleeps until woken or the time is over."""
        with self._lock:
            if message.done:
                return
            lead = not self._reading
            if lead:
                self._reading = True
            else:
                message.wake = wake = allocate_lock()
                wake.acquire()
        if lead:
            try:
                self._read_for(message, until)
            finally:
                with self._lock:
                    self._reading = False
        elif not wake.acquire(timeout=max(0.0, until - self._clock())):
            with self._lock:
                # It must not be woken to read when nobody sleeps here. If it was just now, `wait` hands over.
                if message.wake is wake:
                    message.wake = None

    def _read_for(self, message: Message, until: float) -> None:
        """Reads the link, for every message, until `message` is done or the time is over; what is there already in any
        case."""
        clock = self._clock
        left = until - clock()
        if left < 0.0:
            left = 0.0
        while True:
            try:
                data = self._link.receive(left)
                self._heard_at = clock()
                self._deliver(data)
            except DeadlineExpired:
                pass
            except WorkerLost as error:
                self.fail(error)
            except (FrameError, InvalidInput, Busy) as error:
                self.fail(FrameError(f"{self.peer}: {error.message}", peer=self.peer))
            if message.done:
                return
            left = until - clock()
            if left <= 0:
                return

    def _deliver(self, data: memoryview) -> None:
        """Raises FrameError or InvalidInput when the frame is nothing that the worker may send now."""
        frame = read_frame(_as_bytes(data))
        verify(frame)
        header = frame.header
        key = (header.correlation_id, header.attempt)
        message = self._in_flight.get(key)
        if message is None:
            if not 1 <= header.correlation_id <= self._newest:
                raise InvalidInput("correlation_id", f"1 to {self._newest}", header.correlation_id)
            self._reassembler.discard(key)
            if header.last_chunk:
                self._on_late()
            return
        if header.chunk_index == 0:
            self._check_first(header, message)
        whole = self._reassembler.add(frame)
        if whole is not None:
            self._settle(message, whole, None)

    def _check_first(self, header: Header, message: Message) -> None:
        if header.kind not in REPLY_KINDS:
            raise InvalidInput("kind", f"one of {sorted(REPLY_KINDS)}", header.kind)
        if header.incarnation != self.endpoint.incarnation:
            raise InvalidInput("incarnation", str(self.endpoint.incarnation), header.incarnation)
        if header.kind == expert_pb2.FRAME_KIND_RESULT:
            check_result(header, message.units, self._limits)
        elif header.total_bytes:
            raise InvalidInput("total_bytes", "0 in a refusal", header.total_bytes)

    def _settle(self, message: Message, reply: Frame | None, error: ColibriError | None) -> None:
        with self._lock:
            if self._in_flight.pop(message.key, None) is None:
                return
            message.done_at = self._heard_at if reply is not None else self._clock()
            message.reply = reply
            message.error = error
            message.done = True
            wake, message.wake = message.wake, None
        if wake is not None:
            wake.release()

    def _hand_over(self) -> None:
        """Wakes one waiter, if nobody reads, to take over."""
        with self._lock:
            if self._reading:
                return
            waiting = next((m for m in self._in_flight.values() if m.wake is not None), None)
            if waiting is None:
                return
            wake, waiting.wake = waiting.wake, None
        if wake is not None:
            wake.release()

    def _cancel(self, message: Message) -> None:
        correlation_id, attempt = message.key
        cancel = Header(
            kind=expert_pb2.FRAME_KIND_CANCEL,
            correlation_id=correlation_id,
            attempt=attempt,
            last_chunk=True,
            incarnation=self.endpoint.incarnation,
        )
        try:
            self._link.send(write_frame(cancel), 0.0)
        except WorkerLost as error:
            self.fail(error)
        except DeadlineExpired:
            return


def _as_bytes(data: memoryview) -> bytes:
    """The bytes under a view of all of them, or a copy."""
    whole = data.obj
    return whole if isinstance(whole, bytes) and len(whole) == data.nbytes else bytes(data)
