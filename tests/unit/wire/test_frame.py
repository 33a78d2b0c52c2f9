"""Frames: canonical bytes, no copy, and the fast reader against protobuf's parser on damaged and unusual
frames."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.errors import FrameError
from colibri.v1 import expert_pb2
from colibri.wire.frame import read_frame, scan_frame, verify, write_frame
from colibri.wire.header import Header, header_from_message
from colibri.wire.limits import FrameLimits
from tests.support.frames import fields_of, forward, headers, message_of, tensors, u32

LIMITS = FrameLimits(layers=2, experts=4, top_k=2, hidden=8, compute_mode="fp32")


def joined(header: Header, tensor: bytes = b"") -> bytes:
    return b"".join(write_frame(header, tensor))


@settings(max_examples=400, deadline=None)
@given(headers, tensors)
def test_written_bytes_are_protobufs_own(header: Header, tensor: bytes) -> None:
    data = joined(header, tensor)
    assert data == message_of(header, tensor).SerializeToString()
    frame = read_frame(data)
    verify(frame)
    assert fields_of(frame.header) == fields_of(header)
    assert frame.tensor == tensor


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, (1 << 20) + 1])
def test_tensor_sizes(size: int) -> None:
    tensor = np.random.default_rng(size).bytes(size)
    data = joined(Header(kind=16, correlation_id=5), tensor)
    assert data == message_of(read_frame(data).header, tensor).SerializeToString()
    assert read_frame(data).tensor == tensor


def test_nothing_is_copied() -> None:
    array = np.arange(100, dtype=np.float32)
    view = array.view(np.uint8).data
    parts = write_frame(Header(kind=1), view)
    assert parts[-1] is view
    data = b"".join(parts)
    assert read_frame(data).tensor.obj is data


def test_the_checksum_covers_lists_and_tensor() -> None:
    data = joined(Header(kind=1, entry_row=u32(7, 8)), b"tensor")
    for place in (data.index(b"\x07\x00\x00\x00"), data.index(b"tensor")):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(FrameError, match=r"crc32c: expected 0x[0-9a-f]{8} \(computed\), got 0x"):
            verify(read_frame(bytes(damaged)))
    verify(read_frame(data))


def test_other_shapes_of_a_frame() -> None:
    header, tensor = b"\x0a\x02\x08\x01", b"\x7a\x03abc"
    other_header = b"\x0a\x02\x10\x05"
    for data, kind, correlation, rows in (
        (tensor + header, 1, 0, b"abc"),
        (header + b"\x7a\x01z" + tensor, 1, 0, b"abc"),
        (header + tensor + other_header, 1, 5, b"abc"),
        (header + b"\x52\x01q" + tensor, 1, 0, b"abc"),
        (header + b"\x7a\x00", 1, 0, b""),
        (tensor, 0, 0, b"abc"),
        (b"", 0, 0, b""),
        (b"\x0a\x82\x00\x08\x01" + tensor, 1, 0, b"abc"),
    ):
        frame = read_frame(data)
        assert (frame.header.kind, frame.header.correlation_id, bytes(frame.tensor)) == (
            kind,
            correlation,
            rows,
        )


@pytest.mark.parametrize(
    "data", [b"\x0a", b"\x0a\x05\x08\x01", b"\x7a\xff\xff\xff\xff\x0f", b"\x0a\x01\x08", b"\xff" * 9]
)
def test_no_frame(data: bytes) -> None:
    with pytest.raises(FrameError, match=r"frame: expected a colibri\.v1\.Frame, got \d+ bytes"):
        read_frame(data)


# Differential fuzz: whatever the scan accepts, protobuf's parser reads the same.

Mutation = Callable[[random.Random, bytearray], None]


def flip(draw: random.Random, data: bytearray) -> None:
    if data:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def overwrite(draw: random.Random, data: bytearray) -> None:
    if data:
        data[draw.randrange(len(data))] = draw.choice(
            (0, 1, 2, 0x7A, 0x7F, 0x80, 0x8A, 0xFF, draw.randrange(256))
        )


def cut(draw: random.Random, data: bytearray) -> None:
    del data[draw.randrange(len(data) + 1) :]


def drop(draw: random.Random, data: bytearray) -> None:
    if data:
        at = draw.randrange(len(data))
        del data[at : at + draw.randrange(1, 6)]


def repeat(draw: random.Random, data: bytearray) -> None:
    begin, end = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    at = draw.randrange(len(data) + 1)
    data[at:at] = data[begin:end]


def insert(draw: random.Random, data: bytearray) -> None:
    at = draw.randrange(len(data) + 1)
    data[at:at] = draw.randbytes(draw.randrange(1, 5))


def append_field(draw: random.Random, data: bytearray) -> None:
    data += draw.choice(
        (b"\x0a\x02\x08\x01", b"\x7a\x02hi", b"\x50\x05", b"\x0a\x07\x9d\x01\x09\x00\x00\x00", b"\x7a\x00")
    )


MUTATIONS: tuple[Mutation, ...] = (flip, flip, overwrite, overwrite, cut, drop, repeat, insert, append_field)


def compare(data: bytes) -> str:
    """Returns who judged: 'scan', 'parser' or 'refused'."""
    try:
        message = expert_pb2.Frame.FromString(data)
    except DecodeError:
        message = None
    scanned = scan_frame(data)
    if message is None:
        assert scanned is None, data.hex()
        with pytest.raises(FrameError):
            read_frame(data)
        return "refused"
    frame = read_frame(data)
    expected = fields_of(header_from_message(message.header))
    # A signalling NaN becomes quiet on its way through Python's floats; weights must be finite anyway.
    if not np.isnan(frame.header.entry_weight).any():
        assert fields_of(frame.header) == expected, data.hex()
    assert frame.tensor == message.tensor, data.hex()
    return "parser" if scanned is None else "scan"


def test_the_scan_agrees_with_the_parser_on_mutated_frames() -> None:
    draw = random.Random(20261129)
    seeds = [
        joined(forward(LIMITS, rows=3, trace_id=bytes(16), remaining_us=29_000_000), bytes(96)),
        joined(forward(LIMITS, correlation_id=1 << 40), bytes(32)),
        joined(
            Header(kind=16, correlation_id=9, units=1, unit_status=u32(1), queue_us=200, compute_us=1),
            bytes(32),
        ),
        joined(Header(kind=21, correlation_id=9, error_message="größe", retry=1, retry_after_us=5)),
        joined(Header(correlation_id=9, chunk_index=3, last_chunk=True), b"x" * 200),
        b"",
    ]
    judged = {"scan": 0, "parser": 0, "refused": 0}
    for _ in range(30_000):
        data = bytearray(draw.choice(seeds))
        for _ in range(draw.randrange(1, 4)):
            draw.choice(MUTATIONS)(draw, data)
        judged[compare(bytes(data))] += 1
    # Every outcome was really tried.
    assert min(judged.values()) > 1000, judged


def test_only_bytes_are_read() -> None:
    for data in (bytearray(b"\x0a\x00"), memoryview(b"\x0a\x00"), "text", None):
        with pytest.raises(TypeError):
            read_frame(data)  # type: ignore[arg-type]


def test_nothing_leaks() -> None:
    data = joined(forward(LIMITS, rows=3, trace_id=bytes(16), error_message="x"), bytes(96))
    damaged = [data[:50], data[:-1], data.replace(b"\x9a\x01", b"\x9b\x01")]

    def rounds(count: int) -> int:
        for _ in range(count):
            frame = read_frame(data)
            write_frame(frame.header, frame.tensor)
            for bad in damaged:
                scan_frame(bad)
            with pytest.raises(TypeError):
                write_frame(Header(entry_row=[1]))  # type: ignore[arg-type]
        return sys.getallocatedblocks()

    rounds(50)
    before = rounds(50)
    assert rounds(500) < before + 300


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes(data: bytes) -> None:
    compare(data)


@settings(max_examples=300, deadline=None)
@given(headers, tensors, st.integers(0, 1 << 30))
def test_mutated_arbitrary_frames(header: Header, tensor: bytes, seed: int) -> None:
    draw = random.Random(seed)
    data = bytearray(joined(header, tensor))
    draw.choice(MUTATIONS)(draw, data)
    compare(bytes(data))
