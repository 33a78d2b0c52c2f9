"""Frames: a header (field 1) and a chunk of a tensor (field 15, always last), with the checksum over both."""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import DecodeError

from colibri.errors import FrameError
from colibri.v1 import expert_pb2
from colibri.wire.checksum import extend_lists, extend_tensor
from colibri.wire.header import (
    Header,
    encode_summed,
    encode_varint,
    header_from_message,
    lists_of,
    scan_header,
)

_HEADER_TAG = 1 << 3 | 2
_TENSOR_TAG = 15 << 3 | 2


class Frame(NamedTuple):
    """One message of the stream. tensor: bytes of the chunk, a view into what was received; lists_crc: the
    checksum over the header's lists, with which the frame's begins."""

    header: Header
    tensor: memoryview
    lists_crc: int = 0


_NO_TENSOR = memoryview(b"")


def write_frame(header: Header, tensor: bytes | memoryview = b"") -> tuple[bytes | memoryview, ...]:
    """The frame's parts, to be joined once by the link; the tensor is not copied.

    Sets header.crc32c. The parts joined are protobuf's own serialisation of the Frame. `tensor`: bytes, or a
    contiguous memoryview of bytes.
    """
    body = encode_summed(header, tensor)
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
    expected, got = extend_tensor(frame.lists_crc, frame.tensor), frame.header.crc32c
    if expected != got:
        raise FrameError(f"crc32c: expected {expected:#010x} (computed), got {got:#010x}")


def _scan_frame(data: bytes) -> Frame | None:
    size = len(data)
    if size < 2 or data[0] != _HEADER_TAG:
        return None
    begin, length = _length(data, 1)
    end = begin + length
    if end > size:
        return None
    scanned = scan_header(data, begin, end)
    if scanned is None:
        return None
    header, crc = scanned
    if end == size:
        return Frame(header, _NO_TENSOR, crc)
    if data[end] != _TENSOR_TAG:
        return None
    begin, length = _length(data, end + 1)
    if begin + length != size:
        return None
    return Frame(header, memoryview(data)[begin:], crc)


def _length(data: bytes, pos: int) -> tuple[int, int]:
    """Where the bytes begin whose length stands at pos, and the length; one beyond the data if it cannot be
    read."""
    value = shift = 0
    for at in range(pos, min(pos + 5, len(data))):
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return at + 1, value
        shift += 7
    return len(data), 1


def _parse_frame(data: bytes) -> Frame:
    try:
        message = expert_pb2.Frame.FromString(data)
    except DecodeError as error:
        raise FrameError(
            f"frame: expected a colibri.v1.Frame, got {len(data)} bytes that are none"
        ) from error
    header = header_from_message(message.header)
    return Frame(header, memoryview(message.tensor), extend_lists(0, lists_of(header)))
