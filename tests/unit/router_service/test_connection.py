"""One stream, many threads: every answer reaches its own waiter; nonsense, loss and silence end what they
must, with the worker's name in each error."""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from colibri.deadline import Deadline
from colibri.errors import Busy, ColibriError, DeadlineExpired, FrameError, WorkerLost
from colibri.placement import WorkerEndpoint
from colibri.router_service.connection import MAX_IN_FLIGHT, Connection, Message
from colibri.transport.link import LinkKind
from colibri.v1 import expert_pb2
from colibri.wire.chunks import Reassembler, message_frames
from colibri.wire.frame import Frame, read_frame, verify
from colibri.wire.header import Header
from colibri.wire.limits import FrameLimits

HIDDEN = 4
LIMITS = FrameLimits(layers=1, experts=2, top_k=2, hidden=HIDDEN, compute_mode="fp32", max_rows=64)
ENDPOINT = WorkerEndpoint("w7", 3, "unix:/nowhere")
TENSOR = np.arange(HIDDEN, dtype=np.float32).data.cast("B")


class MemoryLink:
    """A Link to a worker on the other side of two queues in this process."""

    peer = "w7"
    kind = LinkKind.GRPC

    def __init__(self) -> None:
        self.sent: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.closed = threading.Event()
        self.full = False
        self.lost: str | None = None

    def send(self, parts: Sequence[bytes | memoryview], timeout_s: float = 1.0) -> None:
        if self.closed.is_set():
            raise WorkerLost("w7: link closed", peer=self.peer)
        if self.full:
            raise DeadlineExpired(f"w7: did not take a frame within {timeout_s:g} s", peer=self.peer)
        self.sent.put(b"".join(parts))

    def receive(self, timeout_s: float) -> memoryview:
        try:
            frame = self.inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise DeadlineExpired("w7: no frame", peer=self.peer) from None
        if frame is None:
            self.inbox.put(None)
            raise WorkerLost("w7: stream lost", peer=self.peer)
        return memoryview(frame)

    def close(self) -> None:
        self.closed.set()
        self.inbox.put(None)

    def next_request(self) -> Header:
        frame = read_frame(self.sent.get(timeout=5))
        verify(frame)
        return frame.header

    def answer(self, header: Header, tensor: bytes | memoryview = b"", chunk_bytes: int = 1 << 20) -> None:
        for parts in message_frames(header, tensor, chunk_bytes):
            self.inbox.put(b"".join(parts))


def forward(correlation_id: int, attempt: int = 0, units: int = 1) -> Header:
    return Header(
        kind=expert_pb2.FRAME_KIND_FORWARD,
        correlation_id=correlation_id,
        attempt=attempt,
        incarnation=3,
        rows=1,
        hidden=HIDDEN,
        units=units,
    )


def result(correlation_id: int, attempt: int = 0, units: int = 1) -> Header:
    return Header(
        kind=expert_pb2.FRAME_KIND_RESULT,
        correlation_id=correlation_id,
        attempt=attempt,
        incarnation=3,
        hidden=HIDDEN,
        units=units,
    )


def receive(connection: Connection, message: Message, deadline: Deadline, wait_s: float) -> Frame:
    """The answer, or its error; as a caller does that gives up in the end."""
    if not connection.wait(message, time.monotonic() + deadline.bound(wait_s)):
        if deadline.expired():
            connection.abandon(message)
        else:
            connection.time_out(message)
    if message.error is not None:
        raise message.error
    assert message.reply is not None
    return message.reply


class Bench:
    """A connection, its link, and threads that ask and wait."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.link = MemoryLink()
        self.late = 0
        self.ends = 0
        self.connection = Connection(
            ENDPOINT, self.link, LIMITS, 64, on_close=self._ended, on_late=self._came_late
        )
        self._threads = threads

    def _ended(self) -> None:
        self.ends += 1

    def _came_late(self) -> None:
        self.late += 1

    def send(self, correlation_id: int, deadline: Deadline | None = None, units: int = 1) -> Message:
        header = forward(correlation_id, units=units)
        return self.connection.send(header, TENSOR, deadline or Deadline(), 5.0)

    def ask(
        self, correlation_id: int, deadline: Deadline | None = None, wait_s: float = 5.0
    ) -> Future[Frame]:
        """Sends here, waits in a thread."""
        message = self.send(correlation_id, deadline)
        return self._threads.submit(receive, self.connection, message, deadline or Deadline(), wait_s)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ThreadPoolExecutor(16) as threads:
        made = Bench(threads)
        yield made
        made.connection.close()


def rows_of(frame: Frame) -> list[float]:
    values: list[float] = np.frombuffer(frame.tensor, dtype=np.float32).tolist()
    return values


def tensor_for(correlation_id: int, units: int = 1) -> memoryview:
    return np.full(units * HIDDEN, correlation_id, dtype=np.float32).data.cast("B")


@contextmanager
def raises_naming_worker(kind: type[ColibriError], match: str | None = None) -> Iterator[None]:
    with pytest.raises(kind, match=match) as caught:
        yield
    assert caught.value.peer == "w7"
    assert "w7" in caught.value.message


def test_answers_in_any_order_reach_their_own_waiters(bench: Bench) -> None:
    waiting = {n: bench.ask(n) for n in range(1, 13)}
    for n in (5, 1, 12, 3, 2, 4, 11, 9, 10, 7, 8, 6):
        bench.link.answer(result(n), tensor_for(n))
    for n, future in waiting.items():
        assert rows_of(future.result(5)) == [n] * HIDDEN


def test_answers_that_came_before_anyone_waited(bench: Bench) -> None:
    messages = [bench.send(n) for n in (1, 2, 3)]
    for n in (3, 2, 1):
        bench.link.answer(result(n), tensor_for(n))
    for n, message in enumerate(messages, 1):
        assert rows_of(receive(bench.connection, message, Deadline(), 1.0)) == [n] * HIDDEN


def test_many_threads_at_once(bench: Bench) -> None:
    """An echoing worker; each of 8 threads asks 200 times, at the same time."""
    ids = iter(range(1, 1_000_000))
    lock = threading.Lock()

    def echo() -> None:
        while not bench.link.closed.is_set():
            try:
                header = read_frame(bench.link.sent.get(timeout=0.1)).header
            except queue.Empty:
                continue
            bench.link.answer(result(header.correlation_id), tensor_for(header.correlation_id % 1000))

    def caller() -> None:
        for _ in range(200):
            with lock:
                n = next(ids)
            message = bench.send(n)
            assert rows_of(receive(bench.connection, message, Deadline(), 5.0)) == [n % 1000] * HIDDEN

    worker = threading.Thread(target=echo)
    worker.start()
    with ThreadPoolExecutor(8) as callers:
        for done in [callers.submit(caller) for _ in range(8)]:
            done.result(30)
    bench.connection.close()
    worker.join(5)
    assert not worker.is_alive()


def test_no_waiter_is_forgotten_whatever_the_order_and_the_deadlines(bench: Bench) -> None:
    """Answers come shuffled and late, or never; deadlines end in between. Nobody waits past the own
    deadline, and whoever has time gets its answer: reading is always handed on."""
    rng = random.Random(5)
    ids = itertools.count(1)

    def worker() -> None:
        held: list[Header] = []
        while not bench.link.closed.is_set():
            try:
                header = read_frame(bench.link.sent.get(timeout=0.002)).header
                if header.kind == expert_pb2.FRAME_KIND_FORWARD:
                    held.append(header)
            except queue.Empty:
                pass
            rng.shuffle(held)
            while len(held) > 3 or (held and rng.random() < 0.3):
                n = held.pop().correlation_id
                if n % 7:  # every seventh gets no answer
                    bench.link.answer(result(n), tensor_for(n))

    def caller(seed: int) -> tuple[int, int]:
        own = random.Random(seed)
        answered = late = 0
        for _ in range(60):
            n = next(ids)
            patience = own.choice([0.005, 0.02, 20.0]) if n % 7 else 0.02
            start = time.monotonic()
            deadline = Deadline.after(patience)
            try:
                message = bench.send(n, deadline)
                assert rows_of(receive(bench.connection, message, deadline, 5.0)) == [n] * HIDDEN
                answered += 1
            except DeadlineExpired:
                assert time.monotonic() - start < 10.0
                assert patience < 20.0
                late += 1
        return answered, late

    thread = threading.Thread(target=worker)
    thread.start()
    with ThreadPoolExecutor(10) as callers:
        counts = [future.result(60) for future in [callers.submit(caller, seed) for seed in range(10)]]
    bench.connection.close()
    thread.join(5)
    assert sum(answered + late for answered, late in counts) == 600
    assert all(answered and late for answered, late in counts)


def test_the_reader_hands_over_when_it_has_its_answer(bench: Bench) -> None:
    first = bench.ask(1)
    time.sleep(0.05)  # now it reads
    second = bench.ask(2)
    time.sleep(0.05)  # now it waits for the reader
    bench.link.answer(result(1), tensor_for(1))
    first.result(5)
    bench.link.answer(result(2), tensor_for(2))
    assert rows_of(second.result(5)) == [2] * HIDDEN


def test_the_reader_hands_over_when_its_time_is_over(bench: Bench) -> None:
    first = bench.ask(1, Deadline.after(0.1))
    time.sleep(0.03)
    second = bench.ask(2)
    with raises_naming_worker(DeadlineExpired):
        first.result(5)
    bench.link.answer(result(2), tensor_for(2))
    assert rows_of(second.result(5)) == [2] * HIDDEN


def test_chunks_of_several_answers_interleave(bench: Bench) -> None:
    waiting = [
        bench._threads.submit(receive, bench.connection, bench.send(n, units=8), Deadline(), 5.0)
        for n in (1, 2)
    ]
    frames = [list(message_frames(result(n, units=8), tensor_for(n, units=8), 20)) for n in (1, 2)]
    for pair in zip(*frames, strict=True):
        for parts in pair:
            bench.link.inbox.put(b"".join(parts))
    for n, future in enumerate(waiting, 1):
        assert rows_of(future.result(5)) == [n] * (8 * HIDDEN)


def test_a_late_answer_is_dropped_and_counted(bench: Bench) -> None:
    with raises_naming_worker(DeadlineExpired, "given up"):
        bench.ask(1, Deadline.after(0.02)).result(5)
    assert bench.link.next_request().kind == expert_pb2.FRAME_KIND_FORWARD
    cancel = bench.link.next_request()
    assert (cancel.kind, cancel.correlation_id, cancel.attempt) == (expert_pb2.FRAME_KIND_CANCEL, 1, 0)
    bench.link.answer(result(1), tensor_for(1))
    bench.link.answer(result(1, units=8), tensor_for(1, units=8), chunk_bytes=20)
    second = bench.ask(2)
    bench.link.answer(result(2), tensor_for(2))
    assert rows_of(second.result(5)) == [2] * HIDDEN
    assert bench.late == 2


def test_an_answer_to_another_attempt_is_late(bench: Bench) -> None:
    waiting = bench.ask(1)
    bench.link.answer(result(1, attempt=5), tensor_for(9))
    bench.link.answer(result(1), tensor_for(1))
    assert rows_of(waiting.result(5)) == [1] * HIDDEN
    assert bench.late == 1


def test_a_second_answer_is_late(bench: Bench) -> None:
    waiting = bench.ask(1)
    bench.link.answer(result(1), tensor_for(1))
    bench.link.answer(result(1), tensor_for(9))
    assert rows_of(waiting.result(5)) == [1] * HIDDEN
    other = bench.ask(2)
    bench.link.answer(result(2), tensor_for(2))
    other.result(5)
    assert bench.late == 1


def _wrong(change: Callable[[Header], None], tensor: bytes | memoryview = TENSOR) -> bytes:
    header = result(1)
    change(header)
    (parts,) = message_frames(header, tensor)
    return b"".join(parts)


def _set(name: str, value: object) -> Callable[[Header], None]:
    return lambda header: setattr(header, name, value)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"\x0a\xff", "frame"),
        (b"", "correlation_id"),
        (_wrong(_set("kind", expert_pb2.FRAME_KIND_FORWARD)), "kind"),
        (_wrong(_set("kind", 99)), "kind"),
        (_wrong(_set("incarnation", 2)), "incarnation"),
        (_wrong(_set("units", 2)), "units"),
        (_wrong(_set("hidden", HIDDEN + 1)), "hidden"),
        (_wrong(_set("unit_status", np.zeros(2, dtype=np.uint32))), "unit_status"),
        (_wrong(_set("unit_status", np.full(1, 7, dtype=np.uint32))), "unit_status"),
        (_wrong(_set("correlation_id", 77)), "correlation_id"),
        (_wrong(lambda h: None, TENSOR[:8]), "total_bytes"),
        (_wrong(_set("kind", expert_pb2.FRAME_KIND_BUSY)), "total_bytes"),
        (_wrong(lambda h: None)[:-1] + b"\xff", "crc32c"),
    ],
)
def test_nonsense_ends_the_link_and_fails_all_of_it(bench: Bench, data: bytes, match: str) -> None:
    first = bench.ask(1)
    time.sleep(0.02)
    second = bench.ask(2)
    bench.link.inbox.put(data)
    for future in (first, second):
        with raises_naming_worker(FrameError, match):
            future.result(5)
    assert bench.link.closed.is_set()
    assert bench.ends == 1
    with raises_naming_worker(FrameError, match):
        bench.send(3)


def test_a_chunk_out_of_turn_ends_the_link(bench: Bench) -> None:
    waiting = bench._threads.submit(receive, bench.connection, bench.send(1, units=8), Deadline(), 5.0)
    frames = list(message_frames(result(1, units=8), tensor_for(1, units=8), 20))
    for parts in (frames[0], frames[2]):
        bench.link.inbox.put(b"".join(parts))
    with raises_naming_worker(FrameError, "chunk_index"):
        waiting.result(5)


def test_a_lost_link_fails_everything_at_once(bench: Bench) -> None:
    waiting = [bench.ask(n) for n in range(1, 9)]
    unread = bench.send(100)
    time.sleep(0.05)
    bench.link.inbox.put(None)
    start = time.monotonic()
    for future in waiting:
        with raises_naming_worker(WorkerLost, "stream lost"):
            future.result(5)
    with raises_naming_worker(WorkerLost, "stream lost"):
        receive(bench.connection, unread, Deadline(), 5.0)
    assert time.monotonic() - start < 30.0
    bench.link.answer(result(1), tensor_for(1))
    with raises_naming_worker(WorkerLost):
        bench.send(101)
    assert isinstance(bench.connection.lost, WorkerLost)


def test_silence_ends_the_link(bench: Bench) -> None:
    first = bench.ask(1, wait_s=0.2)
    second = bench.ask(2, wait_s=60.0)
    with raises_naming_worker(WorkerLost, r"no answer within 0\.\d s"):
        first.result(5)
    with raises_naming_worker(WorkerLost, r"no answer within 0\.\d s"):
        second.result(5)
    assert bench.link.closed.is_set()


def test_one_missing_answer_of_a_busy_link_fails_alone(bench: Bench) -> None:
    first = bench.ask(1, wait_s=0.2)
    second = bench.ask(2)
    third = bench.ask(3)
    bench.link.answer(result(2), tensor_for(2))
    second.result(5)
    with raises_naming_worker(WorkerLost, r"no answer within 0\.\d s"):
        first.result(5)
    bench.link.answer(result(3), tensor_for(3))
    assert rows_of(third.result(5)) == [3] * HIDDEN
    assert not bench.link.closed.is_set()


def test_messages_in_flight_are_bounded(bench: Bench) -> None:
    for n in range(1, MAX_IN_FLIGHT + 1):
        bench.send(n)
    with raises_naming_worker(Busy, str(MAX_IN_FLIGHT)):
        bench.send(MAX_IN_FLIGHT + 1)


def test_a_link_that_takes_nothing(bench: Bench) -> None:
    bench.link.full = True
    with raises_naming_worker(WorkerLost, "did not take"):
        bench.send(1)
    with raises_naming_worker(DeadlineExpired, "did not take"):
        bench.send(2, Deadline.after(0.0))
    bench.link.full = False
    waiting = bench.ask(3)
    bench.link.answer(result(3), tensor_for(3))
    waiting.result(5)


def test_requests_above_a_chunk_travel_in_pieces(bench: Bench) -> None:
    header = forward(1)
    tensor = np.random.default_rng(0).bytes((5 << 20) // 2)
    bench.connection.send(header, tensor, Deadline(), 5.0)
    whole = Reassembler(4, 1 << 23)
    frames = [read_frame(bench.link.sent.get(timeout=5)) for _ in range(3)]
    assert [whole.add(frame) for frame in frames[:2]] == [None, None]
    received = whole.add(frames[2])
    assert received is not None
    assert bytes(received.tensor) == tensor


def test_closing_twice_and_while_someone_waits(bench: Bench) -> None:
    waiting = bench.ask(1)
    time.sleep(0.02)
    bench.connection.close()
    bench.connection.close()
    with raises_naming_worker(WorkerLost, "closed"):
        waiting.result(5)
    assert bench.ends == 1


def test_an_overdue_message_shows_a_hang_only_if_nothing_else_explains_it(bench: Bench) -> None:
    big, small = bench.send(1, units=8), bench.send(2)
    now = time.monotonic()
    big.due_at, small.due_at = now + 60.0, now
    # The big one was there first, and has time.
    assert not bench.connection.is_hung(small, now)
    assert bench.connection.is_hung(small, now + 61.0)
    small.due_at = now + 99.0
    assert bench.connection.is_hung(big, now + 61.0)  # what came later is no excuse
    bench.link.answer(result(1, units=8), tensor_for(1, units=8))
    assert bench.connection.wait(big, time.monotonic() + 5.0)
    assert not bench.connection.is_hung(small, now + 100.0)  # it answers
    third = bench.send(3)
    assert bench.connection.is_hung(third, now + 100.0)
