"""The rings in shared memory: records whole and in order, every wait bounded, and a peer that writes
nonsense."""

from __future__ import annotations

import gc
import mmap
import os
import random
import secrets
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SHRINK, fcntl
from pathlib import Path

import pytest

from colibri.transport._shared_ring import Closed, SharedRing

RING = 4096
PAGE = 4096
#: Offsets in the memory: RingControl of either direction (ring.h), then the bytes of the rings.
CONTROL = (64, 64 + 256)
TAIL, WRITTEN, HEAD, TAKEN, SLEEPS, CLOSED = 0, 8, 64, 72, 128, 192
ECHO = """
import sys
from colibri.transport._shared_ring import SharedRing
ring = SharedRing.open(sys.argv[1], bytes.fromhex(sys.argv[2]))
print("open", flush=True)
try:
    while True:
        record = ring.read(10.0, 5e-5)
        if record is None or not ring.write((record,), 10.0):
            sys.exit("silence")
except ConnectionError:
    pass
"""


class Pair:
    """Both ends in this process. creator reads direction 0, opener direction 1."""

    def __init__(self, size: int = RING) -> None:
        self.size = size
        self.token = secrets.token_bytes(16)
        self.creator = SharedRing.create(size, self.token)
        self.path = f"/proc/self/fd/{self.creator.fd}"
        self.opener = SharedRing.open(self.path, self.token)
        self.memory = mmap.mmap(self.creator.fd, PAGE + 2 * size)

    def poke(self, direction: int, word: int, value: int, form: str = "<Q") -> None:
        struct.pack_into(form, self.memory, CONTROL[direction] + word, value)

    def poke_data(self, direction: int, at: int, data: bytes) -> None:
        begin = PAGE + direction * self.size + at
        self.memory[begin : begin + len(data)] = data

    def word(self, direction: int, word: int) -> int:
        return int(struct.unpack_from("<Q", self.memory, CONTROL[direction] + word)[0])


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.memory.close()
    pair.creator.close()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 17, 4087, 4088])
def test_a_record_of_every_size(pair: Pair, size: int) -> None:
    assert pair.opener.max_record == 4088
    for seed in range(3):
        record = random.Random(seed).randbytes(size)
        cut = size // 3
        assert pair.opener.write((record[:cut], b"", memoryview(record)[cut:]), 1.0)
        assert pair.creator.ready
        assert pair.creator.read(1.0, 0.0) == record
        assert not pair.creator.ready


@pytest.mark.parametrize("size", [4095, 8184])
def test_a_record_of_a_larger_ring(size: int) -> None:
    pair, record = Pair(8192), random.Random(size).randbytes(size)
    assert pair.creator.write((record,), 1.0)
    assert pair.opener.read(1.0, 0.0) == record
    pair.memory.close()


def test_a_record_above_the_maximum_is_refused(pair: Pair) -> None:
    with pytest.raises(ValueError, match=r"parts: expected at most 4088 bytes, got 4089"):
        pair.opener.write((bytes(4000), bytes(89)), 1.0)
    assert not pair.creator.ready


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_times_are_checked(pair: Pair, value: float) -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        pair.opener.write((b"x",), value)
    with pytest.raises(ValueError, match="timeout_s"):
        pair.opener.read(value, 0.0)
    with pytest.raises(ValueError, match="spin_s"):
        pair.opener.read(0.0, value)


def test_parts_that_are_no_buffers(pair: Pair) -> None:
    array = bytearray(b"held")
    with pytest.raises(TypeError):
        pair.opener.write((array, 5), 1.0)  # type: ignore[arg-type]
    array.extend(b" no more")  # nothing holds it
    assert not pair.creator.ready


def test_records_wrap_around(pair: Pair) -> None:
    draw = random.Random(2)
    waiting: list[bytes] = []
    for _ in range(5000):
        record = draw.randbytes(draw.choice((0, 1, 8, 13, 500, 1000, 4088)))
        while not pair.creator.write((record,), 0.0):
            assert pair.opener.read(0.0, 0.0) == waiting.pop(0)
        waiting.append(record)
    for record in waiting:
        assert pair.opener.read(0.0, 0.0) == record
    assert pair.opener.read(0.0, 0.0) is None


def test_a_full_ring_takes_a_record_once_there_is_room(pair: Pair) -> None:
    assert pair.opener.write((bytes(4088),), 0.0)
    begin = time.monotonic()
    assert not pair.opener.write((b"",), 0.3)
    assert 0.3 <= time.monotonic() - begin < 30
    timer = threading.Timer(0.1, lambda: pair.creator.read(1.0, 0.0))
    timer.start()
    assert pair.opener.write((b"later",), 10.0)
    timer.join()
    assert pair.creator.read(1.0, 0.0) == b"later"


def test_who_does_not_wait_is_not_held_up_by_one_who_does(pair: Pair) -> None:
    assert pair.opener.write((bytes(4088),), 0.0)
    waiter = threading.Thread(target=lambda: pair.opener.write((b"waits",), 60.0))
    waiter.start()
    time.sleep(0.05)
    begin = time.monotonic()
    assert not pair.opener.write((b"x",), 0.0)
    assert time.monotonic() - begin < 30
    pair.creator.read(1.0, 0.0)
    waiter.join(5)
    assert pair.creator.read(1.0, 0.0) == b"waits"


def test_wake_ends_the_read_that_waits_or_the_next(pair: Pair) -> None:
    timer = threading.Timer(0.1, pair.creator.wake)
    timer.start()
    begin = time.monotonic()
    assert pair.creator.read(60.0, 0.0) is None
    timer.join()
    pair.creator.wake()
    pair.creator.wake()
    assert pair.creator.read(60.0, 0.0) is None
    assert time.monotonic() - begin < 30
    assert pair.opener.write((b"x",), 0.0)
    assert pair.creator.read(60.0, 0.0) == b"x"


def test_a_second_reader_is_refused(pair: Pair) -> None:
    reader = threading.Thread(target=lambda: pair.creator.read(60.0, 0.0))
    reader.start()
    time.sleep(0.1)
    with pytest.raises(RuntimeError, match="another thread is reading"):
        pair.creator.read(0.0, 0.0)
    pair.creator.wake()
    reader.join(5)
    assert not reader.is_alive()


@pytest.mark.parametrize("closer", ["creator", "opener"])
def test_what_was_written_before_a_close_is_read(pair: Pair, closer: str) -> None:
    assert pair.opener.write((b"to creator",), 0.0)
    assert pair.creator.write((b"to opener",), 0.0)
    (pair.creator if closer == "creator" else pair.opener).close()
    assert pair.creator.closed
    assert pair.opener.closed
    assert pair.creator.read(0.0, 0.0) == b"to creator"
    assert pair.opener.read(0.0, 0.0) == b"to opener"
    for ring in (pair.creator, pair.opener):
        with pytest.raises(Closed):
            ring.read(10.0, 0.0)
        with pytest.raises(ConnectionError):
            ring.write((b"x",), 10.0)


def test_no_record_is_lost_to_a_close_right_after_it() -> None:
    for _ in range(300):
        pair = Pair()

        def last_word(ring: SharedRing = pair.opener) -> None:
            ring.write((b"last word",), 1.0)
            ring.close()

        writer = threading.Thread(target=last_word)
        writer.start()
        assert pair.creator.read(10.0, 1.0) == b"last word"
        writer.join()
        pair.memory.close()


def test_close_wakes_who_waits(pair: Pair) -> None:
    timer = threading.Timer(0.1, pair.opener.close)
    timer.start()
    with pytest.raises(Closed):
        pair.creator.read(60.0, 0.0)
    timer.join()


def test_close_wakes_who_waits_for_room(pair: Pair) -> None:
    assert pair.opener.write((bytes(4088),), 0.0)
    timer = threading.Timer(0.1, pair.creator.close)
    timer.start()
    with pytest.raises(Closed):
        pair.opener.write((b"x",), 20.0)
    timer.join()


@pytest.mark.parametrize("tail", [1, 7, RING + 8, 1 << 32, (1 << 64) - 8, 1 << 63])
def test_a_corrupt_tail(pair: Pair, tail: int) -> None:
    pair.poke(0, TAIL, tail)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the peer wrote an impossible ring"):
            pair.creator.read(1.0, 0.0)


@pytest.mark.parametrize("head", [1, 8, 1 << 32, (1 << 64) - RING - 8, 1 << 63])
def test_a_corrupt_head(pair: Pair, head: int) -> None:
    pair.poke(1, HEAD, head)
    with pytest.raises(RuntimeError, match="the peer wrote an impossible ring"):
        pair.creator.write((b"x",), 1.0)


@pytest.mark.parametrize(
    "header", [9, 17, RING, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) + 8, (1 << 64) - 1, (1 << 64) - 8]
)
def test_a_corrupt_size(pair: Pair, header: int) -> None:
    assert pair.opener.write((b"8 bytes.",), 0.0)
    pair.poke_data(0, 0, struct.pack("<Q", header))
    with pytest.raises(RuntimeError, match="the peer wrote an impossible ring"):
        pair.creator.read(1.0, 0.0)


def test_own_words_are_never_read_back(pair: Pair) -> None:
    for number in range(2000):
        pair.poke(0, HEAD, secrets.randbits(64))  # the creator's, as the reader of direction 0
        pair.poke(1, TAIL, secrets.randbits(64))  # and as the writer of direction 1
        record = b"%d" % number
        pair.poke(0, HEAD, max(0, pair.word(0, TAIL)))
        assert pair.opener.write((record,), 0.0)
        pair.poke(0, HEAD, secrets.randbits(64))
        assert pair.creator.read(0.0, 0.0) == record
        assert pair.creator.write((record,), 0.0)
        assert pair.opener.read(0.0, 0.0) == record


def test_a_peer_cannot_undo_a_close(pair: Pair) -> None:
    pair.creator.close()
    for direction in (0, 1):
        pair.poke(direction, CLOSED, 0, "<I")
    assert pair.creator.closed
    with pytest.raises(Closed):
        pair.creator.read(10.0, 0.0)
    with pytest.raises(Closed):
        pair.creator.write((b"x",), 10.0)


def test_a_silent_sleeper_word_delays_and_no_more(pair: Pair) -> None:
    """A peer that never wakes: the record is seen all the same."""
    stop = threading.Event()

    def scribble() -> None:
        while not stop.is_set():
            pair.poke(0, SLEEPS, 0, "<I")

    scribbler = threading.Thread(target=scribble)
    scribbler.start()
    timer = threading.Timer(0.1, lambda: pair.opener.write((b"seen",), 1.0))
    timer.start()
    assert pair.creator.read(10.0, 0.0) == b"seen"
    timer.join()
    stop.set()
    scribbler.join()


def test_random_scribbling_never_hurts_the_process(pair: Pair) -> None:
    """Every outcome is a record of at most the ring's size, None, or a typed refusal; in bounded time."""
    draw = random.Random(3)
    seen: set[str] = set()
    for _ in range(3000):
        if draw.random() < 0.02:
            pair.memory.close()
            pair = Pair()
        for _ in range(draw.randrange(4)):
            at = draw.choice((TAIL, WRITTEN, HEAD, TAKEN, SLEEPS))
            pair.poke(draw.randrange(2), at, draw.choice((draw.randrange(RING), draw.getrandbits(64))))
        pair.poke_data(0, draw.randrange(RING - 64), draw.randbytes(64))
        for act in ("read", "write"):
            try:
                if act == "read":
                    record = pair.creator.read(0.0, 0.0)
                    assert record is None or len(record) <= pair.creator.max_record
                    seen.add("none" if record is None else "record")
                else:
                    pair.creator.write((draw.randbytes(draw.randrange(100)),), 0.0)
            except RuntimeError as error:
                seen.add(f"{act}: {error}")
    text = "shared memory: the peer wrote an impossible ring"
    assert seen - {"none"} == {"record", f"read: {text}", f"write: {text}"}
    pair.memory.close()


@pytest.mark.parametrize("size", [0, 2048, 4097, 12288, 1 << 31])
def test_ring_sizes(size: int) -> None:
    with pytest.raises(RuntimeError, match=rf"ring_bytes: expected a power of two .*, got {size}"):
        SharedRing.create(size, bytes(16))


def test_tokens(pair: Pair) -> None:
    with pytest.raises(RuntimeError, match="token: expected 16 bytes, got 15"):
        SharedRing.create(RING, bytes(15))
    with pytest.raises(RuntimeError, match="token: expected 16 bytes, got 17"):
        SharedRing.open(pair.path, bytes(17))
    with pytest.raises(RuntimeError, match="not the memory that it offered"):
        SharedRing.open(pair.path, bytes(16))


def test_what_is_no_such_memory_is_refused(pair: Pair, tmp_path: Path) -> None:
    whole = bytes(pair.memory)
    fifo, file = tmp_path / "fifo", tmp_path / "file"
    os.mkfifo(fifo)
    file.write_bytes(whole)
    for path in (str(fifo), str(file), "/dev/null", "/dev/zero", str(tmp_path), "/proc/self/fd/999"):
        with pytest.raises(RuntimeError, match=r"cannot open|no sealed memory"):
            SharedRing.open(path, pair.token)
    both = F_SEAL_SHRINK | F_SEAL_GROW
    for content, seals, text in (
        (whole, 0, "no sealed memory"),
        (whole, F_SEAL_GROW, "no sealed memory"),
        (whole, F_SEAL_SHRINK, "no sealed memory"),
        (b"", both, "impossible size: 0"),
        (whole[:PAGE], both, "impossible size"),
        (whole[:-1], both, "impossible size"),
        (whole + bytes(PAGE), both, "impossible size"),
        (bytes(len(whole)), both, "not the memory that it offered"),
        (whole + bytes(2 * RING), both, "not the memory that it offered"),
    ):
        fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(fd, content)
        fcntl(fd, F_ADD_SEALS, seals)
        with pytest.raises(RuntimeError, match=text):
            SharedRing.open(f"/proc/self/fd/{fd}", pair.token)
        os.close(fd)


def test_memory_of_absurd_size_is_refused_before_it_is_mapped() -> None:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, PAGE + (1 << 40))  # sparse
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
    with pytest.raises(RuntimeError, match="impossible size"):
        SharedRing.open(f"/proc/self/fd/{fd}", bytes(16))
    os.close(fd)


def test_the_memory_is_sealed_against_its_peer(pair: Pair) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(pair.creator.fd, PAGE)
    with pytest.raises(PermissionError):
        os.ftruncate(pair.creator.fd, 1 << 20)


def echo_process(ring: SharedRing, token: bytes) -> subprocess.Popen[str]:
    path = f"/proc/{os.getpid()}/fd/{ring.fd}"
    process = subprocess.Popen(
        [sys.executable, "-c", ECHO, path, token.hex()], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    process.stdout.close()
    return process


def test_two_processes_echo_20000_records() -> None:
    draw, token = random.Random(4), secrets.token_bytes(16)
    ring = SharedRing.create(1 << 16, token)
    process = echo_process(ring, token)
    sent: list[bytes] = []
    try:
        for number in range(20_000):
            record = draw.randbytes(draw.choice((0, 1, 7, 8, 9, draw.randrange(3000))))
            if number % 1000 == 0:
                record = draw.randbytes(ring.max_record)
            assert ring.write((record,), 10.0)
            sent.append(record)
            # Up to so many are on their way, which both rings hold.
            while len(sent) > draw.randrange(8) or sum(map(len, sent)) > 30_000:
                assert ring.read(10.0, 5e-5) == sent.pop(0)
                if not sent:
                    break
        for record in sent:
            assert ring.read(10.0, 5e-5) == record
        ring.close()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait(10)


def test_a_peer_killed_in_mid_traffic() -> None:
    """What came is whole; what does not come ends in a bound; the ring can still be closed."""
    for pause in (0.0, 0.01, 0.05):
        token = secrets.token_bytes(16)
        ring = SharedRing.create(1 << 16, token)
        process = echo_process(ring, token)
        timer = threading.Timer(pause, process.send_signal, (signal.SIGKILL,))
        timer.start()
        try:
            number = read = 0
            while ring.write((b"%d " % number * 100,), 0.3):
                number += 1
                while (record := ring.read(0.0, 0.0)) is not None:
                    assert record == b"%d " % read * 100
                    read += 1
            while (record := ring.read(0.1, 0.0)) is not None:
                assert record == b"%d " % read * 100
                read += 1
            assert read <= number
            ring.close()
        finally:
            timer.join()
            process.kill()
            process.wait(10)


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:colibri-ring")


def test_nothing_is_left_after_many_rings() -> None:
    gc.collect()
    fds, maps = len(os.listdir("/proc/self/fd")), mappings()
    for _ in range(200):
        pair = Pair(1 << 20)
        assert pair.opener.write((bytes(100_000),), 1.0)
        pair.memory.close()
        del pair
    with pytest.raises(RuntimeError):
        SharedRing.open("/proc/self/fd/0", bytes(16))
    assert (len(os.listdir("/proc/self/fd")), mappings()) == (fds, maps)
