"""Messages cut into frames and put together again, in any interleaving, within bounds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from colibri.errors import Busy, InvalidInput
from colibri.wire.chunks import Reassembler, message_frames
from colibri.wire.frame import Frame, read_frame, verify
from colibri.wire.header import Header
from colibri.wire.limits import CHUNK_BYTES
from tests.support.frames import fields_of, u32

CHUNK = 64


def frames_of(header: Header, tensor: bytes, chunk: int = CHUNK) -> list[Frame]:
    frames = [read_frame(b"".join(parts)) for parts in message_frames(header, tensor, chunk)]
    for frame in frames:
        verify(frame)
    return frames


def piece(correlation_id: int, index: int, size: int, *, last: bool = False, total: int = 200) -> Frame:
    header = Header(
        correlation_id=correlation_id,
        chunk_index=index,
        last_chunk=last,
        total_bytes=0 if index else total,
    )
    return Frame(header, memoryview(bytes(size)))


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 127, 128, 129, 1000])
def test_cut_and_put_together(size: int) -> None:
    tensor = np.random.default_rng(size).bytes(size)
    header = Header(kind=1, correlation_id=5, attempt=2, rows=3, entry_row=u32(1, 2))
    frames = frames_of(header, tensor)
    assert len(frames) == max(1, -(-size // CHUNK))
    assert [frame.header.chunk_index for frame in frames] == list(range(len(frames)))
    assert [frame.header.last_chunk for frame in frames] == [False] * (len(frames) - 1) + [True]
    for frame in frames[1:]:
        again = Header(
            correlation_id=5,
            attempt=2,
            chunk_index=frame.header.chunk_index,
            last_chunk=frame.header.last_chunk,
            crc32c=frame.header.crc32c,
        )
        assert fields_of(frame.header) == fields_of(again)
    together = Reassembler(4, 10_000)
    *before, whole = [together.add(frame) for frame in frames]
    assert before == [None] * (len(frames) - 1)
    assert whole is not None
    assert whole.tensor == tensor
    assert whole.header.total_bytes == size
    assert whole.header.entry_row.tolist() == [1, 2]
    assert (len(together), together.held_bytes) == (0, 0)


def test_the_default_chunk_is_a_mebibyte() -> None:
    tensor = bytes(CHUNK_BYTES + 1)
    sizes = [len(parts[-1]) for parts in message_frames(Header(kind=1), tensor)]
    assert sizes == [CHUNK_BYTES, 1]


def test_a_single_frame_is_not_copied() -> None:
    (frame,) = frames_of(Header(kind=1), b"abc")
    assert Reassembler(1, 0).add(frame) is frame


def test_any_interleaving() -> None:
    draw = random.Random(7)
    for _ in range(50):
        messages = {key: draw.randbytes(draw.randrange(1, 400)) for key in range(6)}
        left = {key: frames_of(Header(kind=1, correlation_id=key), data) for key, data in messages.items()}
        together = Reassembler(6, 6 * 400)
        done = {}
        while left:
            key = draw.choice(list(left))
            whole = together.add(left[key].pop(0))
            if whole is not None:
                done[key] = bytes(whole.tensor)
            if not left[key]:
                del left[key]
        assert done == messages
        assert together.held_bytes == 0


def test_attempts_are_messages_of_their_own() -> None:
    together = Reassembler(4, 1000)
    one = frames_of(Header(kind=1, correlation_id=9, attempt=0), b"a" * 100)
    two = frames_of(Header(kind=1, correlation_id=9, attempt=1), b"b" * 100)
    assert together.add(one[0]) is None
    assert together.add(two[0]) is None
    whole_two, whole_one = together.add(two[1]), together.add(one[1])
    assert whole_one is not None
    assert whole_two is not None
    assert (bytes(whole_one.tensor), bytes(whole_two.tensor)) == (b"a" * 100, b"b" * 100)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([piece(1, 1, 10)], r"chunk_index: expected 0, the first chunk of a message, got 1"),
        ([piece(1, 0, 100), piece(1, 2, 50)], "chunk_index: expected 1, got 2"),
        ([piece(1, 0, 100), piece(1, 1, 50), piece(1, 1, 50)], "chunk_index: expected 2, got 1"),
        ([piece(1, 0, 100), piece(1, 0, 100)], "chunk_index: expected the next of its message, got 0 again"),
        (
            [piece(1, 0, 100), piece(1, 1, 101, last=True)],
            "tensor: expected 100 bytes in the last chunk, got 101",
        ),
        (
            [piece(1, 0, 100), piece(1, 1, 99, last=True)],
            "tensor: expected 100 bytes in the last chunk, got 99",
        ),
        ([piece(1, 0, 100), piece(1, 1, 100)], "tensor: expected 1 to 99 bytes, got 100"),
        ([piece(1, 0, 100), piece(1, 1, 0)], "tensor: expected 1 to 99 bytes, got 0"),
        ([piece(1, 0, 0)], "tensor: expected 1 to 199 bytes in a first of several chunks, got 0"),
        ([piece(1, 0, 200)], "tensor: expected 1 to 199 bytes"),
        ([piece(1, 0, 99, last=True)], "total_bytes: expected 99, the bytes of the only chunk, got 200"),
    ],
)
def test_pieces_that_do_not_fit(frames: list[Frame], message: str) -> None:
    together = Reassembler(4, 1000)
    *fine, wrong = frames
    for frame in fine:
        assert together.add(frame) is None
    with pytest.raises(InvalidInput, match=message):
        together.add(wrong)
    assert (len(together), together.held_bytes) == (0, 0)


def test_bounds() -> None:
    together = Reassembler(2, 450)
    together.add(piece(1, 0, 10))
    with pytest.raises(Busy, match="incomplete messages hold 200 of 450 bytes"):
        together.add(piece(2, 0, 10, total=251))
    together.add(piece(2, 0, 10, total=250))
    with pytest.raises(Busy, match="2 incomplete messages wait already"):
        together.add(piece(3, 0, 10, total=20))
    assert together.discard((1, 0))
    assert not together.discard((1, 0))
    assert (len(together), together.held_bytes) == (1, 250)
    together.add(piece(3, 0, 10))


def test_a_lying_total_allocates_nothing() -> None:
    together = Reassembler(4, 1 << 20)
    lie: Any = piece(1, 0, 10, total=1 << 60)
    with pytest.raises(Busy):
        together.add(lie)
    assert together.held_bytes == 0
