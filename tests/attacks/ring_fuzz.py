"""A hostile peer of a shared-memory link: it holds the memory and writes what it likes, whenever it likes."""

from __future__ import annotations

import mmap
import os
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from colibri.grpc_options import channel_options
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.transport.host import host_id
from colibri.transport.shared_memory import LAYOUT
from colibri.v1 import expert_pb2, expert_pb2_grpc

_PAGE = 4096
#: Of ring_memory.cpp: two controls of 256 bytes behind magic, size and token.
_CONTROL, _CONTROL_BYTES = 64, 256
_TAIL, _WRITTEN, _HEAD, _TAKEN, _SLEEPS, _CLOSED = 0, 8, 64, 72, 128, 192
_WORDS = (_TAIL, _WRITTEN, _HEAD, _TAKEN, _SLEEPS, _CLOSED)


class Memory:
    """The memory of one link, as the worker shares it. What is written there needs no leave of anybody."""

    def __init__(self, offer: expert_pb2.AttachReply) -> None:
        descriptor = os.open(f"/proc/{offer.pid}/fd/{offer.fd}", os.O_RDWR)
        try:
            self.view = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        self.ring_bytes = (len(self.view) - _PAGE) // 2

    def word(self, ring: int, at: int, value: int) -> None:
        where = _CONTROL + ring * _CONTROL_BYTES + at
        self.view[where : where + 8] = struct.pack("<Q", value & (1 << 64) - 1)

    def put(self, ring: int, at: int, data: bytes) -> None:
        start = _PAGE + ring * self.ring_bytes + at % self.ring_bytes
        room = min(len(data), _PAGE + (ring + 1) * self.ring_bytes - start)
        self.view[start : start + room] = data[:room]

    def record(self, at: int, length: int, data: bytes) -> None:
        """In the ring to the worker: a record that says `length`, and a tail that offers it."""
        self.put(0, at, struct.pack("<Q", length & (1 << 64) - 1) + data)
        self.word(0, _TAIL, at + 8 + (len(data) + 7) // 8 * 8)
        self.word(0, _WRITTEN, random.getrandbits(32))


@contextmanager
def attached(target: str, security: ChannelSecurity = PLAIN) -> Iterator[tuple[Memory, grpc.Call]]:
    """A link to a real worker, held by its memory alone."""
    with security.open(target, channel_options()) as channel:
        expert: expert_pb2_grpc.ExpertStub = expert_pb2_grpc.ExpertStub(channel)
        call = expert.Attach(expert_pb2.AttachRequest(host=host_id(), layout=LAYOUT))
        try:
            yield Memory(next(call)), call
        finally:
            call.cancel()


def spoil(memory: Memory, draw: random.Random, frames: list[bytes]) -> None:
    """One hostile act. frames: right ones, to begin with."""
    numbers = (
        0, 1, 7, 8, 9, memory.ring_bytes - 8, memory.ring_bytes, memory.ring_bytes + 1, 1 << 31, 1 << 32,
        1 << 62, (1 << 63) - 1, (1 << 64) - 8, (1 << 64) - 1, draw.getrandbits(64), draw.getrandbits(16),
    )  # fmt: skip
    kind = draw.randrange(6)
    if kind == 0:
        memory.word(draw.randrange(2), draw.choice(_WORDS), draw.choice(numbers))
    elif kind == 1:
        for word in _WORDS:
            memory.word(draw.randrange(2), word, draw.choice(numbers))
    elif kind == 2:
        memory.record(0, draw.choice(numbers), draw.randbytes(draw.randrange(0, 4096)))
    elif kind == 3:
        frame = draw.choice(frames)
        memory.record(0, len(frame), frame)
        # Changed while the worker reads it.
        for _ in range(64):
            memory.put(0, draw.randrange(0, 4096), draw.randbytes(16))
            memory.put(0, 0, struct.pack("<Q", draw.choice(numbers)))
    elif kind == 4:
        changed = bytearray(draw.choice(frames))
        for _ in range(draw.randrange(1, 8)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        memory.record(0, len(changed), bytes(changed))
    else:
        memory.view[: len(memory.view) // 8] = draw.randbytes(len(memory.view) // 8)
