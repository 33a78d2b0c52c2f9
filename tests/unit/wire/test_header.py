"""Written bytes are protobuf's own; what is read is what protobuf reads."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from colibri.errors import FrameError
from colibri.v1 import expert_pb2
from colibri.wire.header import (
    FIELDS,
    LIST_FIELDS,
    Header,
    encode_header,
    encode_varint,
    header_from_message,
    header_to_message,
    parse_header,
    scan_header,
)
from tests.support.frames import fields_of, headers, u32

EDGES = {
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


def scanned(data: bytes) -> Header:
    found = scan_header(data, 0, len(data))
    assert found is not None
    return found[0]


def test_fields_are_the_protos() -> None:
    proto = expert_pb2.FrameHeader.DESCRIPTOR.fields
    assert tuple(field.name for field in proto) == FIELDS
    assert [field.number for field in proto] == list(range(1, len(FIELDS) + 1))
    assert tuple(field.name for field in proto if field.is_repeated) == LIST_FIELDS
    assert [field.name for field in fields(Header)] == list(FIELDS)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in EDGES.items() for v in values])
def test_each_field_alone(name: str, value: Any) -> None:
    header = Header(**{name: value})
    data = encode_header(header)
    assert data == header_to_message(header).SerializeToString()
    assert fields_of(scanned(data)) == fields_of(header)
    assert fields_of(parse_header(data)) == fields_of(header)


@settings(max_examples=400, deadline=None)
@given(headers)
def test_any_header(header: Header) -> None:
    data = encode_header(header)
    assert data == header_to_message(header).SerializeToString()
    assert fields_of(scanned(data)) == fields_of(header)


def test_lists_read_are_aligned_and_read_only() -> None:
    data = encode_header(Header(kind=1, entry_row=u32(1, 2, 3), entry_weight=np.array([1.5], np.float32)))
    for shift in range(4):
        found = scan_header(b"x" * shift + data, shift, shift + len(data))
        assert found is not None
        for array in (found[0].entry_row, found[0].entry_weight):
            assert array.flags.aligned
            assert not array.flags.writeable


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
    }


@pytest.mark.parametrize("name", other_shapes())
def test_other_shapes_go_to_the_full_parser(name: str) -> None:
    data = other_shapes()[name]
    assert scan_header(data, 0, len(data)) is None
    expected = header_from_message(expert_pb2.FrameHeader.FromString(data))
    assert fields_of(parse_header(data)) == fields_of(expected)
    assert parse_header(data).entry_row.tolist() == [5, 6]


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",
        b"\x9a\x01\x08\x05\x00",
        b"\x9a\x01\x03\x05\x00\x00",
        b"\xea\x01\x02\xff\xfe",
        b"\xcd\x01\x00\x00",
        b"\x10" + b"\xff" * 11,
        b"\x10" + b"\x80" * 10 + b"\x00",
        b"\x03",
    ],
)
def test_bytes_that_are_no_header(data: bytes) -> None:
    assert scan_header(data, 0, len(data)) is None
    with pytest.raises(FrameError, match=f"header: expected a FrameHeader, got {len(data)} bytes"):
        parse_header(data)


def test_cut_anywhere() -> None:
    whole = encode_header(
        Header(kind=1, correlation_id=300, entry_row=u32(1, 2), crc32c=7, error_message="é")
    )
    for end in range(len(whole)):
        found = scan_header(whole, 0, end)
        if found is not None:
            message = expert_pb2.FrameHeader.FromString(whole[:end])
            assert fields_of(found[0]) == fields_of(header_from_message(message))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"rows": 1 << 32}, ValueError),
        ({"epoch": 1 << 64}, ValueError),
        ({"rows": -1}, ValueError),
        ({"entry_row": np.array([1], np.int64)}, TypeError),
        ({"entry_row": np.zeros((1, 1), np.uint32)}, TypeError),
        ({"entry_weight": u32(1)}, TypeError),
        ({"entry_row": u32(1, 2, 3, 4)[::2]}, TypeError),
    ],
)
def test_values_that_do_not_fit(change: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        encode_header(replace(Header(), **change))


def test_varints() -> None:
    for value in (0, 1, 127, 128, 300, (1 << 64) - 1):
        data = encode_varint(value)
        assert sum((byte & 127) << 7 * at for at, byte in enumerate(data)) == value
        assert all(byte > 127 for byte in data[:-1])
        assert data[-1] < 128
    for wrong in (-1, 1 << 64):
        with pytest.raises(ValueError, match="varint"):
            encode_varint(wrong)
