"""FrameHeader as a plain object, written and read without protobuf objects.

Written bytes are protobuf's own serialisation: fields ascending, defaults left out, lists packed, shortest
varints (https://protobuf.dev/programming-guides/encoding/). The reader scans just that shape and hands
everything else that is legal protobuf (other orders, repeats, unknown fields, unpacked lists) to protobuf's
parser.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from colibri.errors import FrameError
from colibri.v1 import expert_pb2

if sys.byteorder != "little":
    raise ImportError("colibri.wire: the wire's arrays are little-endian, and so must the machine be")

U32 = NDArray[np.uint32]
F32 = NDArray[np.float32]

_U32 = np.dtype("<u4")
_F32 = np.dtype("<f4")


def _empty(dtype: np.dtype[Any]) -> NDArray[Any]:
    array = np.empty(0, dtype)
    array.flags.writeable = False
    return array


EMPTY_U32: U32 = _empty(_U32)
EMPTY_F32: F32 = _empty(_F32)


@dataclass(slots=True, eq=False)
class Header:
    """The fields of colibri.v1.FrameHeader, in its order; lists are one-dimensional uint32 or float32 arrays.

    Enum fields hold numbers as they came, also unknown ones. Treated as immutable once built; not frozen,
    because a frozen one takes three times as long to make.
    """

    kind: int = 0
    correlation_id: int = 0
    attempt: int = 0
    chunk_index: int = 0
    last_chunk: bool = False
    total_bytes: int = 0
    epoch: int = 0
    incarnation: int = 0
    remaining_us: int = 0
    priority: int = 0
    layer: int = 0
    compute_mode: int = 0
    wire_dtype: int = 0
    rows: int = 0
    hidden: int = 0
    units: int = 0
    group_expert: U32 = field(default_factory=lambda: EMPTY_U32)
    group_count: U32 = field(default_factory=lambda: EMPTY_U32)
    entry_row: U32 = field(default_factory=lambda: EMPTY_U32)
    entry_slot: U32 = field(default_factory=lambda: EMPTY_U32)
    entry_unit: U32 = field(default_factory=lambda: EMPTY_U32)
    entry_weight: F32 = field(default_factory=lambda: EMPTY_F32)
    unit_slots: U32 = field(default_factory=lambda: EMPTY_U32)
    unit_status: U32 = field(default_factory=lambda: EMPTY_U32)
    crc32c: int = 0
    trace_id: bytes = b""
    retry: int = 0
    retry_after_us: int = 0
    error_message: str = ""
    queue_us: int = 0
    compute_us: int = 0


FIELDS = tuple(item.name for item in fields(Header))
LIST_FIELDS = FIELDS[16:24]

#: What a field's bytes are; the maximum of a varint that the scan takes (more is truncated by protobuf's
#: parser).
_U32_MAX, _U64_MAX, _ENUM_MAX = (1 << 32) - 1, (1 << 64) - 1, (1 << 31) - 1
_VARINT_MAX = {
    **dict.fromkeys((1, 12, 13, 27), _ENUM_MAX),
    **dict.fromkeys((3, 4, 10, 11, 14, 15, 16), _U32_MAX),
    **dict.fromkeys((2, 6, 7, 8, 9, 28, 30, 31), _U64_MAX),
    5: 1,
}
_FIXED32, _TRACE, _MESSAGE = 25, 26, 29
_WIRE_VARINT, _WIRE_BYTES, _WIRE_FIXED32 = 0, 2, 5


def encode_varint(value: int) -> bytes:
    """Shortest form. Raises ValueError unless 0 <= value < 2^64."""
    if 0 <= value < 128:
        return _ONE_BYTE[value]
    if not 0 <= value <= _U64_MAX:
        raise ValueError(f"varint: expected 0 to 2^64 - 1, got {value}")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes((value,)) for value in range(128)]


def _tag(number: int) -> bytes:
    wire = _WIRE_VARINT if number in _VARINT_MAX else _WIRE_BYTES
    return encode_varint(number << 3 | (_WIRE_FIXED32 if number == _FIXED32 else wire))


_LEADING = [(_tag(n), _VARINT_MAX[n]) for n in range(1, 17)]
_LIST_TAGS = [(_tag(n), _F32 if n == 22 else _U32) for n in range(17, 25)]
_TAG = {n: _tag(n) for n in range(25, 32)}
_leading = attrgetter(*FIELDS[:16])
lists_of = attrgetter(*LIST_FIELDS)
_TRAILING = attrgetter(*FIELDS[24:])


def encode_header(header: Header) -> bytes:
    """FrameHeader's canonical bytes. Raises ValueError or TypeError for a value the field cannot hold."""
    out: list[bytes] = []
    append = out.append
    for value, (tag, limit) in zip(_leading(header), _LEADING, strict=True):
        if value:
            if value > limit:
                raise ValueError(f"header: {value} does not fit its field")
            append(tag)
            append(_ONE_BYTE[value] if 0 < value < 128 else encode_varint(value))
    for array, (tag, dtype) in zip(lists_of(header), _LIST_TAGS, strict=True):
        if array.size:
            if array.dtype != dtype or array.ndim != 1:
                raise TypeError(f"header: expected {dtype} [n], got {array.dtype} {array.shape}")
            append(tag)
            append(encode_varint(array.nbytes))
            append(array.tobytes())
    crc, trace, retry, retry_after, message, queue, compute = _TRAILING(header)
    if crc:
        append(_TAG[25] + crc.to_bytes(4, "little"))
    if trace:
        append(_TAG[26] + encode_varint(len(trace)) + trace)
    for value, number in ((retry, 27), (retry_after, 28)):
        if value:
            append(_TAG[number] + encode_varint(value))
    if message:
        text = message.encode()
        append(_TAG[29] + encode_varint(len(text)) + text)
    for value, number in ((queue, 30), (compute, 31)):
        if value:
            append(_TAG[number] + encode_varint(value))
    return b"".join(out)


def scan_header(data: bytes, pos: int, end: int) -> Header | None:
    """Reads canonical bytes data[pos:end]; None for anything else, which is then the full parser's."""
    values: list[Any] = _DEFAULTS.copy()
    last = 0
    while pos < end:
        tag = data[pos]
        pos += 1
        if tag < 128:
            number = tag >> 3
        else:
            if pos >= end or data[pos] != 1:
                return None
            pos += 1
            number = tag >> 3 & 15 | 16
        if number <= last or pos >= end:
            return None
        last = number
        wire = tag & 7
        if wire == _WIRE_FIXED32:
            if number != _FIXED32 or end - pos < 4:
                return None
            values[24] = int.from_bytes(data[pos : pos + 4], "little")
            pos += 4
            continue
        value = data[pos]
        pos += 1
        if value > 127:
            value &= 127
            shift = 7
            while True:
                if pos >= end or shift > 63:
                    return None
                byte = data[pos]
                pos += 1
                value |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
        limit = _VARINT_MAX.get(number)
        if wire == _WIRE_VARINT and limit is not None:
            if value > limit:
                return None
            values[number - 1] = value
            continue
        if wire != _WIRE_BYTES or limit is not None or number == _FIXED32 or value > end - pos:
            return None
        # A slice, not a view: the arrays made of it are aligned, which a view into the frame would not be.
        piece = data[pos : pos + value]
        pos += value
        if number < _FIXED32:
            if value & 3:
                return None
            values[number - 1] = np.frombuffer(piece, _F32 if number == 22 else _U32)
        elif number == _TRACE:
            values[25] = piece
        else:
            try:
                values[28] = piece.decode()
            except UnicodeDecodeError:
                return None
    values[4] = bool(values[4])
    return Header(*values)


_DEFAULTS: list[Any] = [getattr(Header(), name) for name in FIELDS]


def parse_header(data: bytes) -> Header:
    """Protobuf's own parser. Raises FrameError when the bytes are no FrameHeader."""
    try:
        message = expert_pb2.FrameHeader.FromString(data)
    except DecodeError as error:
        raise FrameError(f"header: expected a FrameHeader, got {len(data)} bytes that are none") from error
    return header_from_message(message)


def header_from_message(message: expert_pb2.FrameHeader) -> Header:
    """The same header from a protobuf object."""
    values: list[Any] = [getattr(message, name) for name in FIELDS]
    for index in range(16, 24):
        values[index] = np.array(values[index], _F32 if index == 21 else _U32)
    return Header(*values)


def header_to_message(header: Header) -> expert_pb2.FrameHeader:
    """A protobuf object of the same header."""
    return expert_pb2.FrameHeader(
        **{
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in ((name, getattr(header, name)) for name in FIELDS)
        }
    )
