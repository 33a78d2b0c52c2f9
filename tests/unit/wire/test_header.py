"""Written bytes are protobuf's own; what is read is what protobuf reads."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from colibri.errors import FrameError
from colibri.v1 import expert_pb2
from colibri.wire.frame import read_frame, scan_frame, write_frame
from colibri.wire.header import FIELDS, LIST_FIELDS, Header, header_from_message
from tests.support.frames import fields_of, headers, message_of, u32

EDGES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(FIELDS, (0, 1, 127, 128, 16383, 16384, (1 << 32) - 1)),
    **dict.fromkeys(("kind", "compute_mode", "wire_dtype", "retry"), (0, 1, 127, 128, (1 << 31) - 1)),
    **dict.fromkeys(
        ("correlation_id", "total_bytes", "epoch", "incarnation", "remaining_us", "queue_us", "compute_us"),
        (0, 1, 127, 128, (1 << 32), (1 << 63), (1 << 64) - 1),
    ),
    **dict.fromkeys(LIST_FIELDS, (u32(), u32(0), u32(1, 2, 3), u32(*range(40)), u32(*range(5000)))),
    "entry_weight": (np.array([], np.float32), np.array([0.0, -0.0, 1e-45, np.inf], np.float32)),
    "last_chunk": (False, True),
    "trace_id": (b"", b"\0", bytes(range(16)), bytes(200)),
    "error_message": ("", "a", "größe 模型", "x" * 200),
}
#: Set by the writer.
del EDGES["crc32c"]


def frame_of(header_bytes: bytes) -> bytes:
    """A frame without a tensor; lengths of one or two bytes."""
    size = len(header_bytes)
    length = bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))
    return b"\x0a" + length + header_bytes


def scanned(data: bytes) -> Header:
    found = scan_frame(data)
    assert found is not None
    return found.header


def written(header: Header) -> bytes:
    (prefix,) = write_frame(header)
    return bytes(prefix)


def test_fields_are_the_protos() -> None:
    proto = expert_pb2.FrameHeader.DESCRIPTOR.fields
    assert tuple(field.name for field in proto) == FIELDS
    assert [field.number for field in proto] == list(range(1, len(FIELDS) + 1))
    assert tuple(field.name for field in proto if field.is_repeated) == LIST_FIELDS
    assert [field.name for field in fields(Header)] == list(FIELDS)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in EDGES.items() for v in values])
def test_each_field_alone(name: str, value: Any) -> None:
    header = Header(**{name: value})
    data = written(header)
    message = message_of(header, b"")
    assert data == message.SerializeToString()
    assert fields_of(scanned(data)) == fields_of(header)
    assert fields_of(header_from_message(message.header)) == fields_of(header)


@pytest.mark.parametrize("crc", [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_every_checksum_is_read(crc: int) -> None:
    kind = expert_pb2.FRAME_KIND_FORWARD
    message = expert_pb2.Frame(header=expert_pb2.FrameHeader(kind=kind, crc32c=crc, queue_us=3))
    header = scanned(message.SerializeToString())
    assert (header.kind, header.crc32c, header.queue_us) == (1, crc, 3)


@settings(max_examples=400, deadline=None)
@given(headers)
def test_any_header(header: Header) -> None:
    data = written(header)
    assert data == message_of(header, b"").SerializeToString()
    assert fields_of(scanned(data)) == fields_of(header)


def test_lists_read_are_aligned_and_read_only() -> None:
    for trace in range(4):
        header = Header(trace_id=b"x" * trace, error_message="y" * trace, epoch=1 << 7 * trace)
        header.entry_row, header.entry_weight = u32(1, 2, 3), np.array([1.5], np.float32)
        found = scanned(written(header))
        for array in (found.entry_row, found.entry_weight, found.entry_slot):
            assert array.flags.aligned
            assert not array.flags.writeable


def test_what_is_read_outlives_the_frame() -> None:
    data = bytearray(written(Header(entry_row=u32(7, 8), error_message="text")))
    header = scanned(bytes(data))
    del data
    assert (header.entry_row.tolist(), header.error_message) == ([7, 8], "text")


def other_shapes() -> dict[str, bytes]:
    """Legal protobuf of one header that is not in the canonical shape."""
    kind, row = b"\x08\x01", b"\x9a\x01\x08\x05\x00\x00\x00\x06\x00\x00\x00"
    return {
        "other order": row + kind,
        "a field twice": b"\x08\x02" + kind + row,
        "unknown varint": kind + row + b"\xf8\x3e\x05",
        "unknown field of later numbers": kind + row + b"\x82\x02\x01z",
        "unpacked list": kind + b"\x9d\x01\x05\x00\x00\x00\x9d\x01\x06\x00\x00\x00",
        "list in two parts": kind + b"\x9a\x01\x04\x05\x00\x00\x00\x9a\x01\x04\x06\x00\x00\x00",
        "an empty list more": kind + row + b"\xa2\x01\x00",
        "a varint too wide for its field": b"\x08\x81\x80\x80\x80\x10" + row,
        "enum beyond 2^31": kind + b"\x60\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + row,
        "another wire type": kind + b"\x15\x01\x02\x03\x04" + row,
    }


@pytest.mark.parametrize("name", other_shapes())
def test_other_shapes_go_to_the_full_parser(name: str) -> None:
    data = frame_of(other_shapes()[name])
    assert scan_frame(data) is None
    header = read_frame(data).header
    assert fields_of(header) == fields_of(header_from_message(expert_pb2.Frame.FromString(data).header))
    assert header.entry_row.tolist() == [5, 6]


@pytest.mark.parametrize(
    "header_bytes",
    [
        b"\x08",
        b"\x9a\x01\x08\x05\x00",
        b"\x9a\x01\x03\x05\x00\x00",
        b"\xea\x01\x02\xff\xfe",
        b"\xcd\x01\x00\x00",
        b"\x10" + b"\xff" * 11,
        b"\x10" + b"\x80" * 10 + b"\x00",
        b"\x03",
        b"\x00\x00",
        b"\xff" * 12,
    ],
)
def test_bytes_that_are_no_header(header_bytes: bytes) -> None:
    data = frame_of(header_bytes)
    assert scan_frame(data) is None
    with pytest.raises(FrameError, match=f"expected a colibri.v1.Frame, got {len(data)} bytes"):
        read_frame(data)


def test_cut_anywhere() -> None:
    whole = written(Header(kind=1, correlation_id=300, entry_row=u32(1, 2), error_message="é", queue_us=300))[
        2:
    ]
    for end in range(len(whole)):
        found = scan_frame(frame_of(whole[:end]))
        if found is not None:
            message = expert_pb2.FrameHeader.FromString(whole[:end])
            assert fields_of(found.header) == fields_of(header_from_message(message))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rows": 1 << 32}, ValueError, "header.rows: expected 0 to 4294967295, got 4294967296"),
        ({"epoch": 1 << 64}, ValueError, "header.epoch: expected 0 to 18446744073709551615, got 184467"),
        ({"rows": -1}, ValueError, "header.rows: expected 0 to 4294967295, got -1"),
        ({"kind": 1 << 31}, ValueError, "header.kind: expected 0 to 2147483647, got 2147483648"),
        ({"last_chunk": 2}, ValueError, "header.last_chunk: expected 0 to 1, got 2"),
        ({"rows": 1.5}, TypeError, "float"),
        ({"entry_row": np.array([1], np.int64)}, TypeError, r"header.entry_row: expected uint32 \[n\]"),
        ({"entry_row": np.array([1], np.int32)}, TypeError, r"header.entry_row: expected uint32 \[n\]"),
        ({"entry_row": np.zeros((1, 1), np.uint32)}, TypeError, r"header.entry_row: expected uint32 \[n\]"),
        (
            {"entry_row": u32(1, 2, 3, 4)[::2]},
            TypeError,
            r"header.entry_row: expected uint32 \[n\], contiguous",
        ),
        (
            {"entry_row": [1, 2]},
            TypeError,
            r"header.entry_row: expected uint32 \[n\], contiguous, got \[1, 2\]",
        ),
        ({"entry_weight": u32(1)}, TypeError, r"header.entry_weight: expected float32 \[n\]"),
        ({"trace_id": "text"}, TypeError, "bytes"),
        ({"error_message": b"bytes"}, TypeError, "."),
        ({"error_message": "\ud800"}, UnicodeEncodeError, "surrogates"),
    ],
)
def test_values_that_do_not_fit(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        write_frame(replace(Header(), **change))


def test_numpy_numbers_are_numbers() -> None:
    header = Header(rows=np.uint32(7), epoch=np.int64(300), units=np.uint16(9))  # type: ignore[arg-type]
    assert written(header) == written(Header(rows=7, epoch=300, units=9))
