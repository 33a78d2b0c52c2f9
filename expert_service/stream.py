"""Serve one Exchange stream: requests in, replies out, all on the call's own thread.

Frames are checked and queued, computed under the worker's turn, and answered. The only hand-over is the one from
grpc (inbox.py). One thread per stream also means that a peer that does not read its replies delays only itself.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from time import monotonic, sleep

import grpc
import numpy as np

from colibri.deadline import Clock, Deadline
from colibri.errors import (
    Busy,
    ColibriError,
    DeadlineExpired,
    InvalidInput,
    ShuttingDown,
    StaleEpoch,
)
from colibri.expert_service.counters import Counters
from colibri.expert_service.epochs import Epochs
from colibri.expert_service.faults import Faults
from colibri.expert_service.held_replies import HeldReplies
from colibri.expert_service.inbox import Arrival, FrameInbox
from colibri.expert_service.queue import ExecutionQueue, Lane, MessageId, Work
from colibri.expert_service.replies import error_header, result_header
from colibri.kernels.api import F32, U32, Array, UnitBatch
from colibri.v1 import expert_pb2
from colibri.wire.chunks import Parts, Reassembler, message_frames
from colibri.wire.frame import Frame, read_frame, verify, write_frame
from colibri.wire.header import Header
from colibri.wire.limits import CHUNK_BYTES, FrameLimits
from colibri.wire.units import check_forward

_log = logging.getLogger(__name__)

RunUnits = Callable[[int, Array, UnitBatch], tuple[F32, U32]]

#: Compute above this is long: frames are read meanwhile.
_LONG_S = 0.001
#: Advice with BUSY: about one small request's compute.
_RETRY_AFTER_S = 0.005
_REMEMBERED_REFUSALS = 1024
#: A slow answer looks this often whether anybody still waits for it.
_DAWDLE_STEP_S = 0.05
#: Frames read before replies get their chance.
_FRAMES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Worker:
    """What all streams of one worker share."""

    name: str
    incarnation: int
    limits: FrameLimits
    run: RunUnits
    queue: ExecutionQueue
    max_requests: int
    max_bytes: int
    epochs: Epochs
    counters: Counters
    draining: threading.Event
    faults: Faults | None = None
    clock: Clock = monotonic


@dataclass(slots=True)
class _Sending:
    """A result that leaves in several frames."""

    key: MessageId
    frames: Iterator[Parts]
    left: int


class ExchangeStream:
    """State of one call of Exchange or Attach. The call's thread owns all of it but the inbox."""

    def __init__(self, worker: Worker, inbox: FrameInbox) -> None:
        self._worker = worker
        self._inbox = inbox
        #: Whether a frame ever came. For any thread.
        self.heard = False
        self._broken = False
        self._lane = Lane(self._inbox.wake)
        self._partial = Reassembler(worker.max_requests, worker.max_bytes)
        self._arrival: dict[MessageId, tuple[float, int]] = {}
        self._in_flight: set[MessageId] = set()
        self._refused: dict[MessageId, None] = {}
        self._answers: deque[Parts] = deque()
        self._sending: _Sending | None = None
        self._held = HeldReplies(inbox.wake, worker.clock)
        self._seconds_per_entry = inf

    @property
    def busy(self) -> bool:
        """Whether something that came in has not been answered yet. Any thread may ask."""
        return bool(self._in_flight or self._answers) or not self._inbox.empty()

    def run(self, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yields the replies' frames until the peer has sent its last request and got every reply, or the worker has
        drained.

        Raises FrameError for bytes that are no frame.
        """
        self._worker.queue.open_lane(self._lane)
        try:
            if not context.add_callback(self._break):
                return
            while not self._finished():
                yield from self._step()
        finally:
            self._close()

    def _step(self) -> Iterator[bytes]:
        """Does everything that can be done now; if that is nothing, waits."""
        for _ in range(_FRAMES_AT_ONCE):
            arrival = self._inbox.take()
            if arrival is None:
                break
            self._receive(arrival)
        while self._answers:
            yield b"".join(self._answers[0])
            self._answers.popleft()
        if self._held:
            yield from self._send_held()
        work = self._take()
        if work is None and self._sending is None and not self._finished():
            # Without work the next thing can only be a frame; with work that waits, it may be the turn.
            self._inbox.set_busy(len(self._lane) > 0 or len(self._held) > 0)
            arrival = self._inbox.wait()
            if arrival is None:
                return
            self._receive(arrival)
            if self._answers:
                return
            work = self._take()
        if work is not None:
            self._inbox.set_busy(self._sending is not None or len(self._lane) > 0 or self._takes_long(work))
            yield from self._answer(work)
        if self._sending is not None:
            self._inbox.set_busy(True)
            yield from self._send_piece(self._sending)

    def _take(self) -> Work | None:
        lane, sending = self._lane, self._sending is not None
        if not lane and not lane.wanting:
            return None
        # While pieces of a big result leave, only small ones are computed in between, and those leave at
        # once: they never wait behind the whole of the big one.
        return self._worker.queue.take(
            lane, will_wait=not sending, max_reply_bytes=CHUNK_BYTES if sending else None
        )

    def _finished(self) -> bool:
        if self._broken:
            return True
        if not self._inbox.ended and (not self._worker.draining.is_set() or len(self._partial)):
            return False
        if self._lane or self._answers or self._held or self._sending is not None:
            return False
        return self._inbox.empty()

    def _takes_long(self, work: Work) -> bool:
        """Whether the helper should read frames meanwhile. Waking it costs more than a short computation."""
        return self._seconds_per_entry * work.frame.header.entry_row.size > _LONG_S

    # Frames in

    def _receive(self, arrival: Arrival) -> None:
        self.heard = True
        when, data = arrival
        frame = read_frame(data)
        header = frame.header
        key = (header.correlation_id, header.attempt)
        if header.kind == expert_pb2.FRAME_KIND_CANCEL and not header.chunk_index:
            self._cancel(key)
        elif header.chunk_index and key in self._refused:
            if header.last_chunk:
                del self._refused[key]
        else:
            self._add(key, frame, when)

    def _add(self, key: MessageId, frame: Frame, when: float) -> None:
        header = frame.header
        mine = bool(header.chunk_index) and key in self._partial
        try:
            verify(frame)
            if not header.chunk_index:
                self._check(key, header)
                self._worker.queue.reserve(header.total_bytes)
                self._arrival[key] = (when, header.total_bytes)
                self._in_flight.add(key)
                mine = True
            whole = self._partial.add(frame)
        except ColibriError as error:
            if mine:
                self._forget(key)
            self._refuse(key, header, error)
            return
        if whole is not None:
            first = whole.header
            arrived = self._arrival.pop(key)[0]
            self._worker.queue.push(
                self._lane,
                Work(
                    key,
                    whole,
                    first.priority,
                    arrived,
                    Deadline.from_remaining_us(first.remaining_us, arrived),
                    first.total_bytes,
                    first.units * self._worker.limits.result_row_bytes,
                ),
            )

    def _check(self, key: MessageId, header: Header) -> None:
        """Decides by its first frame whether a message may come in. Raises the typed error of the refusal."""
        worker = self._worker
        if header.kind != expert_pb2.FRAME_KIND_FORWARD:
            raise InvalidInput("kind", "FORWARD or CANCEL", header.kind)
        if header.incarnation not in (0, worker.incarnation):
            raise StaleEpoch(f"incarnation: expected {worker.incarnation}, got {header.incarnation}")
        worker.epochs.check(header.epoch)
        if worker.faults is not None:
            worker.faults.at_admission()
        if key in self._in_flight:
            raise InvalidInput(
                "correlation_id", "an id and attempt that are not in flight", f"{key[0]}/{key[1]}"
            )
        if worker.draining.is_set():
            raise ShuttingDown(f"{worker.name} is shutting down")
        check_forward(header, worker.limits)
        worker.epochs.name(header.epoch)

    def _cancel(self, key: MessageId) -> None:
        if self._worker.queue.cancel(self._lane, key):
            self._in_flight.discard(key)
        elif key in self._partial:
            self._forget(key)
            self._remember(key)
        else:
            return
        self._worker.counters.cancelled()

    def _forget(self, key: MessageId) -> None:
        """Drops a message that is still arriving."""
        self._partial.discard(key)
        self._worker.queue.release(self._arrival.pop(key)[1])
        self._in_flight.discard(key)

    def _refuse(self, key: MessageId, header: Header, error: ColibriError) -> None:
        if isinstance(error, DeadlineExpired):
            self._worker.counters.expired()
        else:
            self._worker.counters.refused()
        if isinstance(error, Busy):
            error.retry_after_s = _RETRY_AFTER_S
        if not header.last_chunk:
            self._remember(key)
        self._answers.append(write_frame(error_header(header, error, self._worker.incarnation)))

    def _remember(self, key: MessageId) -> None:
        """Remembers a refused message, so that its later chunks are dropped silently."""
        self._refused[key] = None
        if len(self._refused) > _REMEMBERED_REFUSALS:
            del self._refused[next(iter(self._refused))]

    # Results out

    def _answer(self, work: Work) -> Iterator[bytes]:
        header = work.frame.header
        try:
            frames, count = self._compute(work)
        except ColibriError as error:
            self._in_flight.discard(work.key)
            self._refuse(work.key, header, error)
            return
        faults = self._worker.faults
        if faults is not None:
            delivery = faults.deliver(frames)
            if delivery.hold_s:
                self._held.hold(work.key, delivery.frames, delivery.hold_s)
                return
            self._dawdle(delivery.wait_s)
            frames, count = ((frame,) for frame in delivery.frames), len(delivery.frames)
        if count > 1:
            self._sending = _Sending(work.key, frames, count)
            return
        yield b"".join(next(frames))
        self._in_flight.discard(work.key)

    def _compute(self, work: Work) -> tuple[Iterator[Parts], int]:
        """Returns the result's frames and their number. Always gives the turn back."""
        worker, header = self._worker, work.frame.header
        try:
            begin = worker.clock()
            if work.deadline.at is not None and begin >= work.deadline.at:
                late = begin - work.deadline.at
                raise DeadlineExpired(
                    f"{worker.name}: the time ran out {late:.3f} s before compute could begin"
                )
            worker.epochs.check(header.epoch)
            units, status = worker.run(header.layer, _rows(work.frame, worker.limits), _batch(header))
            end = worker.clock()
        except ColibriError:
            raise
        except Exception as error:
            _log.exception("%s: unexpected error in compute", worker.name)
            raise ColibriError(f"{worker.name}: internal error ({type(error).__name__})") from error
        finally:
            worker.queue.pass_turn()
        self._seconds_per_entry = (end - begin) / header.entry_row.size
        worker.counters.done(header.rows)
        reply = result_header(
            header,
            worker.incarnation,
            status,
            _microseconds(begin - work.arrived),
            _microseconds(end - begin),
        )
        if worker.faults is not None and worker.faults.units_to_drop(reply):
            units = units[:-1]
        size = units.nbytes
        return message_frames(reply, units.reshape(-1).view(np.uint8).data), max(1, -(-size // CHUNK_BYTES))

    def _send_piece(self, sending: _Sending) -> Iterator[bytes]:
        yield b"".join(next(sending.frames))
        sending.left -= 1
        if not sending.left:
            self._sending = None
            self._in_flight.discard(sending.key)

    def _send_held(self) -> Iterator[bytes]:
        for key, frames in self._held.due():
            yield from frames
            self._in_flight.discard(key)

    def _dawdle(self, seconds: float) -> None:
        """Stops the whole stream for a while (a fault on purpose)."""
        until = self._worker.clock() + seconds
        while not self._broken and (left := until - self._worker.clock()) > 0:
            sleep(min(left, _DAWDLE_STEP_S))

    def _break(self) -> None:
        """Runs on a thread of grpc when the call is over, also if the peer died. No reply can leave any more."""
        self._broken = True
        self._inbox.close()

    def _close(self) -> None:
        self._inbox.close()
        self._held.close()
        for _, request_bytes in self._arrival.values():
            self._worker.queue.release(request_bytes)
        dropped = len(self._arrival) + self._worker.queue.close_lane(self._lane)
        self._arrival.clear()
        if dropped:
            self._worker.counters.cancelled(dropped)


def _rows(frame: Frame, limits: FrameLimits) -> Array:
    """Returns the request's rows: a view if the frame's bytes happen to be aligned, else a copy."""
    header = frame.header
    dtype = np.float32 if limits.compute_mode == "fp32" else np.uint16
    rows: Array = np.frombuffer(frame.tensor, dtype).reshape(header.rows, header.hidden)
    return rows if rows.flags.aligned else rows.copy()


def _batch(header: Header) -> UnitBatch:
    return UnitBatch(
        header.group_expert,
        header.group_count,
        header.entry_row,
        header.entry_slot,
        header.entry_unit,
        header.entry_weight,
        header.unit_slots,
    )


def _microseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e6))
