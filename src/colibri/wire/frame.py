"""Frames: a header (field 1) and a chunk of a tensor (field 15, always last), with the checksum over both."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from colibri.errors import FrameError
from colibri.v1 import expert_pb2
from colibri.wire.checksum import extend_lists, extend_tensor
from colibri.wire.header import (
    Header,
    encode_header,
    encode_varint,
    header_from_message,
    lists_of,
    scan_header,
)

_HEADER_TAG = 1 << 3 | 2
_TENSOR_TAG = 15 << 3 | 2


class Frame(NamedTuple):
    """One message of the stream. tensor: bytes of the chunk, a view into what was received."""

    header: Header
    tensor: memoryview


_NO_TENSOR = memoryview(b"")


def checksum(header: Header, tensor: bytes | memoryview) -> int:
    """What the header's crc32c has to be."""
    return extend_tensor(extend_lists(0, lists_of(header)), tensor)


def write_frame(header: Header, tensor: bytes | memoryview = b"") -> tuple[bytes | memoryview, ...]:
    """The frame's parts, to be joined once by the link; the tensor is not copied.

    Sets header.crc32c. The parts joined are protobuf's own serialisation of the Frame. `tensor`: bytes, or a
    contiguous memoryview of bytes.
    """
    header.crc32c = checksum(header, tensor)
    body = encode_header(header)
    size = len(tensor)
    if not size:
        return (b"\x0a", encode_varint(len(body)), body)
    return (b"\x0a", encode_varint(len(body)), body, b"\x7a" + encode_varint(size), tensor)


def read_frame(data: bytes) -> Frame:
    """Reads a frame; its tensor is a view into `data`. The checksum is the caller's to check (`verify`).

    Raises FrameError when the bytes are no Frame.
    """
    frame = _scan_frame(data)
    return _parse_frame(data) if frame is None else frame


def verify(frame: Frame) -> None:
    """Raises FrameError when the checksum is wrong."""
    header = frame.header
    expected = checksum(header, frame.tensor)
    if expected != header.crc32c:
        raise FrameError(f"crc32c: expected {expected:#010x} (computed), got {header.crc32c:#010x}")


def _scan_frame(data: bytes) -> Frame | None:
    size = len(data)
    if size < 2 or data[0] != _HEADER_TAG:
        return None
    length = _length(data, 1)
    if length is None:
        return None
    begin, end = length
    if end > size:
        return None
    header = scan_header(data, begin, end)
    if header is None:
        return None
    if end == size:
        return Frame(header, _NO_TENSOR)
    if data[end] != _TENSOR_TAG:
        return None
    length = _length(data, end + 1)
    if length is None or length[1] != size:
        return None
    return Frame(header, memoryview(data)[length[0] :])


def _length(data: bytes, pos: int) -> tuple[int, int] | None:
    """Begin and end of the bytes whose length stands at pos; None where the full parser must judge."""
    value = shift = 0
    while pos < len(data) and shift < 35:
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return pos, pos + value
        shift += 7
    return None


def _parse_frame(data: bytes) -> Frame:
    try:
        message = expert_pb2.Frame.FromString(data)
    except DecodeError as error:
        raise FrameError(
            f"frame: expected a colibri.v1.Frame, got {len(data)} bytes that are none"
        ) from error
    return Frame(header_from_message(message.header), memoryview(message.tensor))
