"""Share one worker's stream among several threads: every message has its own place for an answer.

The thread that waits first reads the link for all and hands the others their answers. When it has its own answer,
the next waiting thread reads on. So an answer reaches a lone caller without passing through another thread.
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
    """The link lives but did not take a whole message in time: its peer hangs, or is flooded."""


class Message:
    """One attempt at one dispatch, in flight. The connection's lock protects its fields.

    done: it has its answer or its failure.
    sent_at: when sending began, seconds of the clock.
    due_at: how long its sender waits for the answer; 0: not set.
    done_at: when its answer was read, or its failure became known.
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
    """A live link to one incarnation of a worker. Once lost it is never read again, and all its messages have failed.

    on_end: called once with the connection and the reason when it ends, on the thread that noticed.
    on_close: called after that, to free what lies under the link.
    on_late: called for each answer that nobody waits for.
    rows_sent: rows sent since the start.
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
        """Ends the connection if its link is dead, even if nobody uses it now."""
        lost = self._link.lost
        if lost is not None:
            self.fail(WorkerLost(lost, peer=self.peer))

    def send(self, header: Header, tensor: bytes | memoryview, deadline: Deadline, wait_s: float) -> Message:
        """Sends a FORWARD. The caller must then `wait` for its answer, or `abandon` it.

        header: its (correlation_id, attempt) is unique on this stream; correlation_id is above 0.
        wait_s: how long the link may take to accept the message, seconds.

        Raises the connection's error if it is lost, Busy if too many messages wait, DeadlineExpired if the deadline
        passes before the link took all of it, SendTimeout if `wait_s` does.
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
        """Waits for a message until the time `until` of the clock; always reads what is there already.

        Returns whether it has its answer or its failure. If not, it stays in flight.
        """
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
        """Whether an overdue message shows that the peer hangs.

        It does if nothing at all has come since it was sent, and no message sent before it, perhaps a large one of
        another thread, still has time.
        """
        if self._heard_at >= message.sent_at:
            return False
        with self._lock:
            return not any(
                other.sent_at <= message.sent_at and now < other.due_at for other in self._in_flight.values()
            )

    def time_out(self, message: Message) -> None:
        """Fails a message whose time is over.

        If nothing at all came since it was sent, the peer hangs or is cut off, so the connection ends; else only
        this message fails.
        """
        waited = self._clock() - message.sent_at
        error = WorkerLost(f"{self.peer}: no answer within {waited:.1f} s", peer=self.peer)
        if self._heard_at < message.sent_at:
            self.fail(error)
        else:
            self._settle(message, None, error)
            self._cancel(message)

    def abandon(self, message: Message) -> None:
        """Stops waiting for a message. Tells the worker, without waiting; a late answer is dropped."""
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
        """Reads the link if no thread does; otherwise sleeps until woken or until the time is over."""
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
        """Reads the link for all messages, until `message` is done or the time is over; always reads what is there
        already.
        """
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
        """Hands a frame to its message. Raises FrameError or InvalidInput for a frame that the worker may not send
        now.
        """
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
        """If no thread reads, wakes one that waits, to take over."""
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
    """Returns the bytes under the view if it covers all of them, else a copy."""
    whole = data.obj
    return whole if isinstance(whole, bytes) and len(whole) == data.nbytes else bytes(data)
