"""Frames out of shared memory: taken, waited for, and what ends the wait."""

from __future__ import annotations

import mmap
import struct
import threading
import time

import pytest

from colibri.errors import FrameError
from colibri.expert_service.inbox import Arrival
from colibri.expert_service.ring_inbox import RingInbox, write_reply
from colibri.transport._shared_ring import SharedRing

RING = 4096
#: Offsets in the memory (ring.h): the tail of the router's ring, the head of the worker's.
ROUTER_TAIL, WORKER_HEAD = 64, 64 + 256 + 64


def pair() -> tuple[SharedRing, SharedRing, RingInbox]:
    worker = SharedRing.create(RING, bytes(16))
    return worker, SharedRing.open(f"/proc/self/fd/{worker.fd}", bytes(16)), RingInbox(worker, lambda: 4.5)


def poke(ring: SharedRing, at: int, value: int) -> None:
    with mmap.mmap(ring.fd, 4096 + 2 * RING) as memory:
        struct.pack_into("<Q", memory, at, value)


def test_frames_are_taken_in_order() -> None:
    _, router, inbox = pair()
    assert inbox.empty()
    assert inbox.take() is None
    for frame in (b"a", b"bc"):
        assert router.write((frame,), 0.0)
    assert not inbox.empty()
    assert inbox.take() == Arrival(4.5, b"a")
    assert inbox.wait() == Arrival(4.5, b"bc")
    assert inbox.empty()


def test_wake_ends_a_wait() -> None:
    _, _, inbox = pair()
    timer = threading.Timer(0.1, inbox.wake)
    timer.start()
    begin = time.monotonic()
    assert inbox.wait() is None
    assert time.monotonic() - begin < 0.9
    timer.join()
    assert not inbox.ended


def test_the_end_comes_after_the_last_frame() -> None:
    _, router, inbox = pair()
    assert router.write((b"last",), 0.0)
    router.close()
    assert inbox.wait() == Arrival(4.5, b"last")
    assert not inbox.ended
    assert inbox.wait() is None
    assert inbox.ended
    assert inbox.take() is None


def test_after_the_end_a_wait_sleeps_until_woken() -> None:
    _, router, inbox = pair()
    router.close()
    assert inbox.wait() is None
    waits = 0
    until = time.monotonic() + 0.5
    timer = threading.Timer(0.25, inbox.wake)
    timer.start()
    while time.monotonic() < until:
        assert inbox.wait() is None
        waits += 1
    timer.join()
    assert 2 <= waits <= 4


def test_nonsense_in_the_ring_is_a_frame_error() -> None:
    worker, _, inbox = pair()
    poke(worker, ROUTER_TAIL, 1 << 40)
    with pytest.raises(FrameError, match="impossible ring"):
        inbox.wait()
    poke(worker, WORKER_HEAD, 1 << 40)
    with pytest.raises(FrameError, match="w0: shared memory: the peer wrote an impossible ring"):
        write_reply(worker, b"reply", "w0")
