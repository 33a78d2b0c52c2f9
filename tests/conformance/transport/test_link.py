"""What every link does, over every kind of address, against a real peer."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from colibri.errors import DeadlineExpired, WorkerLost
from colibri.transport.grpc_stream import QUEUED_BYTES, GrpcStreamLink, open_channel
from colibri.transport.host import host_id
from colibri.transport.link import Link, LinkKind
from colibri.transport.shared_memory import SharedMemoryLink, ring_bytes
from tests.support.frame_server import MAX_FRAME, FrameServer

Connect = Callable[..., Link]

ROOT = Path(__file__).resolve().parents[3]
PEER = "w7"
#: Bound of what must come: generous, since sanitisers and other work make it late.
WAIT_S = 60.0


@pytest.fixture(params=["unix", "tcp"])
def listen(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"unix:{tmp_path}/peer.sock" if request.param == "unix" else "127.0.0.1:0"


@pytest.fixture
def server(listen: str) -> Iterator[FrameServer]:
    server = FrameServer(listen)
    yield server
    server.stop()


@pytest.fixture(params=[LinkKind.GRPC, LinkKind.SHARED_MEMORY], ids=lambda kind: kind.value)
def kind(request: pytest.FixtureRequest) -> LinkKind:
    assert isinstance(request.param, LinkKind)
    return request.param


@pytest.fixture
def connect(kind: LinkKind) -> Iterator[Connect]:
    channels: list[grpc.Channel] = []
    links: list[Link] = []

    def link(target: str, queued_bytes: int = QUEUED_BYTES) -> Link:
        channels.append(open_channel(target, MAX_FRAME))
        links.append(
            GrpcStreamLink(channels[-1], PEER, queued_bytes)
            if kind is LinkKind.GRPC
            else SharedMemoryLink(channels[-1], PEER, host_id(), timeout_s=WAIT_S)
        )
        assert links[-1].kind is kind
        return links[-1]

    yield link
    for opened in links:
        opened.close()
    for channel in channels:
        channel.close()


def fill(link: Link, frame: bytes, timeout_s: float) -> None:
    for _ in range(200):
        link.send((frame,), timeout_s=timeout_s)


def fill_slowly(link: Link) -> None:
    """Sends until the link is known to be lost, 10 s long."""
    for _ in range(1000):
        link.send((b"x",))
        time.sleep(0.01)


def send_and_receive(link: Link, frame: bytes) -> memoryview:
    link.send((frame,))
    return link.receive(WAIT_S)


def open_and_use(connect: Connect, target: str, use: Callable[[Link], object]) -> None:
    use(connect(target))


def test_frames_come_back_in_order_and_whole(server: FrameServer, connect: Connect) -> None:
    link = connect(server.target)
    draw = random.Random(1)
    frames = [draw.randbytes(size) for size in (0, 1, 15, 16, 17, 4096, 65537, 1 << 20, MAX_FRAME, 3)]
    for frame in frames:
        cut = draw.randrange(len(frame) + 1)
        link.send((frame[:cut], memoryview(frame)[cut:]))
    for frame in frames:
        got = link.receive(WAIT_S)
        assert isinstance(got, memoryview)
        assert got == frame


def test_parts_may_change_once_sent(server: FrameServer, connect: Connect) -> None:
    link = connect(server.target)
    buffer = bytearray(b"first.")
    link.send((memoryview(buffer),))
    buffer[:] = b"second"
    assert link.receive(WAIT_S) == b"first."


def test_many_threads_send(server: FrameServer, connect: Connect) -> None:
    link = connect(server.target)

    def send(name: int) -> None:
        for number in range(100):
            link.send((b"%d %d" % (name, number),))

    threads = [threading.Thread(target=send, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    got: dict[int, list[int]] = {name: [] for name in range(4)}
    for _ in range(400):
        name, number = map(int, bytes(link.receive(WAIT_S)).split())
        got[name].append(number)
    for thread in threads:
        thread.join(WAIT_S)
    assert got == {name: list(range(100)) for name in range(4)}


def test_frames_sent_before_the_end_are_received(server: FrameServer, connect: Connect) -> None:
    link = connect(server.target)
    frames = [b"%d" % number + bytes(size) for number, size in enumerate((1, 100_000, 3, 200_000, 5))]
    for frame in (*frames, b"end"):
        link.send((frame,))
    time.sleep(0.3)
    for frame in frames:
        assert link.receive(WAIT_S) == frame
    with pytest.raises(WorkerLost, match=r"w7: the worker ended the stream"):
        link.receive(WAIT_S)


@pytest.mark.parametrize("wait", [0.0, 0.05, -1.0])
def test_a_wait_that_is_over_leaves_the_link_alive(
    server: FrameServer, connect: Connect, wait: float
) -> None:
    link = connect(server.target)
    begin = time.monotonic()
    with pytest.raises(DeadlineExpired, match=r"w7: no frame within") as caught:
        link.receive(wait)
    assert time.monotonic() - begin < 15
    assert caught.value.peer == PEER
    link.send((b"still here",))
    assert link.receive(WAIT_S) == b"still here"


def test_the_peer_ends_the_stream(server: FrameServer, connect: Connect) -> None:
    link = connect(server.target)
    link.send((b"a",))
    link.send((b"end",))
    assert link.receive(WAIT_S) == b"a"
    for _ in range(2):
        with pytest.raises(WorkerLost, match=r"w7: the worker ended the stream") as caught:
            link.receive(WAIT_S)
        assert (caught.value.peer, caught.value.retryable) == (PEER, True)
    with pytest.raises(WorkerLost, match=r"w7: the worker ended the stream"):
        link.send((b"b",))


def test_a_status_is_named(server: FrameServer, connect: Connect) -> None:
    link = connect(server.target)
    link.send((b"abort",))
    with pytest.raises(WorkerLost, match=r"w7: stream lost: DATA_LOSS: a frame I cannot read"):
        link.receive(WAIT_S)


def test_a_frame_beyond_the_limit_costs_this_stream_only(server: FrameServer, connect: Connect) -> None:
    link, other = connect(server.target), connect(server.target)
    # The ring's own limit is higher than that of a gRPC message.
    frame = bytes(ring_bytes(MAX_FRAME))
    with pytest.raises(WorkerLost, match=r"w7: stream lost: RESOURCE_EXHAUSTED") as caught:
        send_and_receive(link, frame)
    assert (caught.value.peer, caught.value.retryable) == (PEER, True)
    with pytest.raises(WorkerLost, match=r"w7: stream lost: RESOURCE_EXHAUSTED"):
        link.receive(WAIT_S)
    other.send((b"fine",))
    assert other.receive(WAIT_S) == b"fine"


def test_nobody_there(listen: str, connect: Connect) -> None:
    target = listen.replace(":0", ":1")
    # Memory is attached as the link opens; a stream's end is met by its first use.
    for use in (lambda link: link.receive(WAIT_S), lambda link: fill_slowly(link)):
        with pytest.raises(
            WorkerLost, match=r"w7: (stream lost: )?(UNAVAILABLE|nobody listens there)"
        ) as caught:
            open_and_use(connect, target, use)
        assert (caught.value.peer, caught.value.retryable) == (PEER, True)


def test_close_wakes_a_receive_and_ends_the_threads(server: FrameServer, connect: Connect) -> None:
    link = connect(server.target)
    caught: list[Exception] = []

    def wait() -> None:
        try:
            link.receive(20.0)
        except WorkerLost as error:
            caught.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.05)
    link.close()
    link.close()
    waiter.join(5.0)
    assert [str(error) for error in caught] == ["w7: link closed"]
    with pytest.raises(WorkerLost, match=r"w7: link closed"):
        link.send((b"x",))
    with pytest.raises(WorkerLost, match=r"w7: link closed"):
        link.receive(1.0)
    assert not any(thread.name == "link w7" for thread in threading.enumerate())


def test_a_peer_that_reads_nothing_holds_up_a_send_only_so_long(
    server: FrameServer, connect: Connect
) -> None:
    link = connect(server.target, queued_bytes=1 << 20)
    link.send((b"deaf",))
    block = bytes(512 << 10)
    with pytest.raises(DeadlineExpired, match=r"w7: did not take a frame within 0.2 s") as caught:
        fill(link, block, 0.2)
    assert caught.value.peer == PEER
    server.hear.set()
    assert link.receive(WAIT_S) == block


def test_a_queue_that_is_full_wakes_when_the_link_is_closed(server: FrameServer, connect: Connect) -> None:
    link = connect(server.target, queued_bytes=1 << 20)
    link.send((b"deaf",))
    threading.Timer(0.3, link.close).start()
    with pytest.raises(WorkerLost, match=r"w7: link closed"):
        fill(link, bytes(512 << 10), 20.0)


def test_frames_that_nobody_takes_stop_the_peer(server: FrameServer, connect: Connect) -> None:
    link = connect(server.target, queued_bytes=1 << 20)
    link.send((b"flood",))
    before = -1
    while server.flooded != before or before <= 0:
        before = server.flooded
        time.sleep(0.3)
    assert before < 1000
    for number in range(1000):
        assert bytes(link.receive(WAIT_S)).rstrip(b"\0") == b"%d" % number


@pytest.mark.parametrize("waiting", [True, False])
def test_a_killed_peer_is_noticed(listen: str, connect: Connect, waiting: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.frame_server", listen],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        link = connect(process.stdout.readline().strip())
        link.send((b"hello",))
        assert link.receive(20.0) == b"hello"
        if waiting:
            threading.Timer(0.2, process.kill).start()
        else:
            process.kill()
            process.wait(WAIT_S)
        begin = time.monotonic()
        with pytest.raises(WorkerLost, match=r"w7: stream lost: UNAVAILABLE"):
            link.receive(20.0)
        assert time.monotonic() - begin < 15
    finally:
        process.kill()
        process.wait(WAIT_S)
        if process.stdout is not None:
            process.stdout.close()
