"""Frames: a header (field 1) and a chunk of a tensor (field 15, always last), with a checksum over both.

Written bytes are protobuf's own serialisation: fields ascending, defaults left out, lists packed, shortest varints
(https://protobuf.dev/programming-guides/encoding/). The reader scans exactly that shape. It hands all other legal
protobuf (other orders, repeats, unknown fields, unpacked lists) to protobuf's parser.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google_crc32c import extend

from colibri.errors import FrameError
from colibri.v1 import expert_pb2
from colibri.wire._codec import Codec
from colibri.wire.checksum import extend_lists, extend_tensor
from colibri.wire.header import F32_DTYPE, U32_DTYPE, Header, header_from_message, lists_of


class Frame(NamedTuple):
    """One frame of a stream.

    tensor: bytes of the chunk, a view into what was received.
    lists_crc: checksum over the header's lists, with which the frame's checksum begins.
    """

    header: Header
    tensor: memoryview
    lists_crc: int = 0


def write_frame(header: Header, tensor: bytes | memoryview = b"") -> tuple[bytes | memoryview, ...]:
    """Returns the frame's parts, which the link joins once. Joined, they are protobuf's own serialisation of the
    Frame.

    header: its crc32c is set.
    tensor: bytes, or a contiguous memoryview of bytes; not copied.

    Raises ValueError or TypeError for a value that its field cannot hold.
    """
    prefix = _CODEC.prefix(header, tensor)
    return (prefix, tensor) if len(tensor) else (prefix,)


def read_frame(data: bytes) -> Frame:
    """Reads a frame. Its tensor is a view into `data`. The caller checks the checksum (`verify`).

    Raises FrameError if the bytes are not a Frame.
    """
    frame = scan_frame(data)
    return _parse_frame(data) if frame is None else frame


def verify(frame: Frame) -> None:
    """Raises FrameError when the checksum is wrong."""
    expected, got = extend_tensor(frame.lists_crc, frame.tensor), frame.header.crc32c
    if expected != got:
        raise FrameError(f"crc32c: expected {expected:#010x} (computed), got {got:#010x}")


def scan_frame(data: bytes) -> Frame | None:
    """Reads a canonical frame; returns None for anything else, which the full parser must read."""
    scanned = _CODEC.scan(data)
    if scanned is None:
        return None
    header, begin, crc = scanned
    return Frame(header, memoryview(data)[begin:], crc)


def _parse_frame(data: bytes) -> Frame:
    try:
        message = expert_pb2.Frame.FromString(data)
    except DecodeError as error:
        raise FrameError(
            f"frame: expected a colibri.v1.Frame, got {len(data)} bytes that are none"
        ) from error
    header = header_from_message(message.header)
    return Frame(header, memoryview(message.tensor), extend_lists(0, lists_of(header)))


#: What codec.cpp calls a field of the header, by (type, repeated).
_KINDS = {
    (FieldDescriptor.TYPE_ENUM, False): "e",
    (FieldDescriptor.TYPE_UINT32, False): "u",
    (FieldDescriptor.TYPE_UINT64, False): "U",
    (FieldDescriptor.TYPE_BOOL, False): "b",
    (FieldDescriptor.TYPE_FIXED32, True): "I",
    (FieldDescriptor.TYPE_FLOAT, True): "f",
    (FieldDescriptor.TYPE_FIXED32, False): "x",
    (FieldDescriptor.TYPE_BYTES, False): "B",
    (FieldDescriptor.TYPE_STRING, False): "s",
}


def _make_codec() -> Codec:
    absent = Header()
    fields = [
        (field.name, _KINDS[field.type, field.is_repeated], getattr(absent, field.name))
        for field in expert_pb2.FrameHeader.DESCRIPTOR.fields
    ]
    return Codec(Header, fields, extend, extend_tensor, np.frombuffer, U32_DTYPE, F32_DTYPE)


_CODEC = _make_codec()
