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
from google_crc32c import extend
from numpy.typing import NDArray

from colibri.errors import FrameError
from colibri.v1 import expert_pb2
from colibri.wire.checksum import extend_tensor

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

_U32_MAX, _U64_MAX, _ENUM_MAX = (1 << 32) - 1, (1 << 64) - 1, (1 << 31) - 1
_FIRST_LIST, _CRC, _TRACE, _MESSAGE = 17, 25, 26, 29
_WIRE_VARINT, _WIRE_BYTES, _WIRE_FIXED32 = 0, 2, 5

#: By field number: the largest varint that the scan takes (protobuf's parser truncates more); -1: no varint.
_LIMITS = [-1] * 32
for _numbers, _limit in (
    ((1, 12, 13, 27), _ENUM_MAX),
    ((3, 4, 10, 11, 14, 15, 16), _U32_MAX),
    ((2, 6, 7, 8, 9, 28, 30, 31), _U64_MAX),
    ((5,), 1),
):
    for _number in _numbers:
        _LIMITS[_number] = _limit
#: By field number, of the lists.
_DTYPES = {number: _F32 if FIELDS[number - 1] == "entry_weight" else _U32 for number in range(17, 25)}


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
    wire = _WIRE_BYTES if _LIMITS[number] < 0 else _WIRE_VARINT
    return encode_varint(number << 3 | (_WIRE_FIXED32 if number == _CRC else wire))


#: Of the fields 1..16: tag and value for values below 128, tag, limit.
_SCALARS = [([_tag(n) + value for value in _ONE_BYTE], _tag(n), _LIMITS[n]) for n in range(1, 17)]
#: Of the lists: tag and length for lengths below 128, tag, dtype.
_LISTS = [([_tag(n) + size for size in _ONE_BYTE], _tag(n), dtype) for n, dtype in _DTYPES.items()]
_TAGS = {n: _tag(n) for n in range(25, 32)}
_scalars_of = attrgetter(*FIELDS[:16])
lists_of = attrgetter(*LIST_FIELDS)
_trailing_of = attrgetter(*FIELDS[24:])


def encode_header(header: Header) -> bytes:
    """FrameHeader's canonical bytes. Raises ValueError or TypeError for a value the field cannot hold."""
    return _encode(header, None)


def encode_summed(header: Header, tensor: bytes | memoryview) -> bytes:
    """As encode_header, after setting header.crc32c to the checksum over its lists and `tensor`."""
    return _encode(header, tensor)


def _encode(header: Header, summed: bytes | memoryview | None) -> bytes:
    out: list[bytes | memoryview] = []
    append = out.append
    for value, (small, tag, limit) in zip(_scalars_of(header), _SCALARS, strict=True):
        if value:
            if 0 < value < 128:
                append(small[value])
            elif value <= limit:
                append(tag + encode_varint(value))
            else:
                raise ValueError(f"header: {value} does not fit its field")
    crc = 0
    for array, (small, tag, dtype) in zip(lists_of(header), _LISTS, strict=True):
        size = array.nbytes
        if size:
            if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
                raise TypeError(f"header: expected {dtype} [n], contiguous, got {array.dtype} {array.shape}")
            crc = extend(crc, array)
            append(small[size] if size < 128 else tag + encode_varint(size))
            append(array.data)
    if summed is not None:
        header.crc32c = extend_tensor(crc, summed)
    crc, trace, retry, retry_after, message, queue, compute = _trailing_of(header)
    if crc:
        append(_TAGS[25] + crc.to_bytes(4, "little"))
    if trace:
        append(_TAGS[26] + encode_varint(len(trace)) + trace)
    if retry:
        append(_TAGS[27] + encode_varint(retry))
    if retry_after:
        append(_TAGS[28] + encode_varint(retry_after))
    if message:
        text = message.encode()
        append(_TAGS[29] + encode_varint(len(text)) + text)
    if queue:
        append(_TAGS[30] + encode_varint(queue))
    if compute:
        append(_TAGS[31] + encode_varint(compute))
    return b"".join(out)


def scan_header(data: bytes, pos: int, end: int) -> tuple[Header, int] | None:
    """Reads canonical bytes data[pos:end]: the header, and the checksum over its lists. None for anything
    else, which is then the full parser's."""
    values: list[Any] = _DEFAULTS.copy()
    last = crc = 0
    try:
        # Reads behind `end` are noticed by the position after the last field.
        while pos < end:
            tag = data[pos]
            if tag < 128:
                number = tag >> 3
                pos += 1
            elif data[pos + 1] == 1:
                number = tag >> 3 & 15 | 16
                pos += 2
            else:
                return None
            if number <= last:
                return None
            last = number
            wire = tag & 7
            if wire == _WIRE_FIXED32:
                if number != _CRC:
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
                    byte = data[pos]
                    pos += 1
                    value |= (byte & 127) << shift
                    if byte < 128:
                        break
                    shift += 7
                    if shift > 63:
                        return None
            if wire == _WIRE_VARINT:
                if value > _LIMITS[number]:
                    return None
                values[number - 1] = value
            elif wire != _WIRE_BYTES or not 0 < value <= end - pos:
                return None
            else:
                # A slice, not a view: the arrays made of it are aligned, which views into the frame would not
                # be.
                piece = data[pos : pos + value]
                pos += value
                if _FIRST_LIST <= number < _CRC and not value & 3:
                    values[number - 1] = np.frombuffer(piece, _DTYPES[number])
                    crc = extend(crc, piece)
                elif number == _TRACE:
                    values[25] = piece
                elif number == _MESSAGE:
                    values[28] = piece.decode()
                else:
                    return None
    except (IndexError, UnicodeDecodeError):
        return None
    if pos != end:
        return None
    values[4] = values[4] == 1
    return Header(*values), crc


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
