"""Who asks grpc for the next frame, and that nothing is lost, doubled or waited for for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from colibri.expert_service.inbox import Inbox


class Grpc:
    """As grpc's request iterator: one frame for each `next`, given to the deserialiser first."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._frames: SimpleQueue[bytes | Exception | None] = SimpleQueue()
        self.asked_by: list[int] = []

    def send(self, *frames: bytes | Exception | None) -> None:
        for frame in frames:
            self._frames.put(frame)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self.asked_by.append(threading.get_ident())
        frame = self._frames.get(timeout=20)
        if frame is None:
            raise StopIteration
        if isinstance(frame, Exception):
            raise frame
        return self._inbox.arrived(frame)


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox(1000, time.monotonic)
    yield inbox
    inbox.close()


@pytest.fixture
def grpc(inbox: Inbox) -> Iterator[Grpc]:
    grpc = Grpc(inbox)
    inbox.attach(grpc)
    yield grpc
    grpc.send(None, None)


def eventually(condition: object) -> None:
    until = time.monotonic() + 10
    while not condition() and time.monotonic() < until:  # type: ignore[operator]
        time.sleep(0.001)
    assert condition()  # type: ignore[operator]


def test_an_idle_stream_asks_itself(inbox: Inbox, grpc: Grpc) -> None:
    grpc.send(b"a", b"b")
    for expected in (b"a", b"b"):
        arrival = inbox.wait()
        assert arrival is not None
        assert arrival.frame == expected
        assert arrival.when <= time.monotonic()
    assert set(grpc.asked_by) == {threading.get_ident()}
    assert inbox.empty()
    assert inbox.take() is None


def test_a_busy_stream_is_helped(inbox: Inbox, grpc: Grpc) -> None:
    inbox.set_busy(True)
    grpc.send(b"a", b"b", b"c")
    eventually(lambda: len(grpc.asked_by) == 4)
    assert [inbox.take().frame for _ in range(3)] == [b"a", b"b", b"c"]  # type: ignore[union-attr]
    assert threading.get_ident() not in grpc.asked_by
    inbox.set_busy(False)
    grpc.send(b"d", b"e")
    got: list[bytes] = []
    while len(got) < 2:
        arrival = inbox.wait()
        if arrival is not None:
            got.append(arrival.frame)
    assert got == [b"d", b"e"]
    # The helper had asked for `d` already; `e` was the stream's own again.
    assert grpc.asked_by[-1] == threading.get_ident()


def test_the_helper_stops_asking_when_much_waits(inbox: Inbox, grpc: Grpc) -> None:
    inbox.set_busy(True)
    grpc.send(*[bytes(600)] * 5)
    eventually(lambda: len(grpc.asked_by) == 2)
    time.sleep(0.05)
    assert len(grpc.asked_by) == 2
    assert inbox.take()
    eventually(lambda: len(grpc.asked_by) == 3)


def test_wake_ends_the_wait_of_a_busy_stream(inbox: Inbox, grpc: Grpc) -> None:
    inbox.set_busy(True)
    threading.Timer(0.05, inbox.wake).start()
    begin = time.monotonic()
    assert inbox.wait() is None
    assert time.monotonic() - begin < 0.9


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("end", [None, ValueError("the peer is gone")])
def test_the_end(inbox: Inbox, grpc: Grpc, end: Exception | None, busy: bool) -> None:
    inbox.set_busy(busy)
    grpc.send(b"last", end)
    got = []
    while not inbox.ended or not inbox.empty():
        arrival = inbox.wait()
        if arrival is not None:
            got.append(arrival.frame)
    assert got == [b"last"]


def test_close_wakes_a_busy_stream_and_ends_the_helper(inbox: Inbox, grpc: Grpc) -> None:
    inbox.set_busy(True)
    eventually(lambda: grpc.asked_by)
    threading.Timer(0.05, inbox.close).start()
    assert inbox.wait() is None
    grpc.send(None)
    eventually(lambda: not any(thread.name == "colibri-frames" for thread in threading.enumerate()))


def test_switching_under_load_loses_nothing(inbox: Inbox, grpc: Grpc) -> None:
    count = 3000
    sender = threading.Thread(target=lambda: grpc.send(*(b"%d" % number for number in range(count))))
    sender.start()
    got: list[int] = []
    begin = time.monotonic()
    while len(got) < count and time.monotonic() - begin < 60:
        inbox.set_busy(len(got) % 7 < 3)
        arrival = inbox.take() or inbox.wait()
        if arrival is not None:
            got.append(int(arrival.frame))
    sender.join(10)
    assert got == list(range(count))
