"""FrameHeader as a plain object and as a protobuf object."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.v1 import expert_pb2

if sys.byteorder != "little":
    raise ImportError("colibri.wire: the wire's arrays are little-endian, and so must the machine be")

U32 = NDArray[np.uint32]
F32 = NDArray[np.float32]

U32_DTYPE = np.dtype(np.uint32)
F32_DTYPE = np.dtype(np.float32)


def _empty(dtype: np.dtype[Any]) -> NDArray[Any]:
    array = np.empty(0, dtype)
    array.flags.writeable = False
    return array


EMPTY_U32: U32 = _empty(U32_DTYPE)
EMPTY_F32: F32 = _empty(F32_DTYPE)


@dataclass(slots=True, eq=False)
class Header:
    """The fields of colibri.v1.FrameHeader, in its order. Lists are one-dimensional uint32 or float32 arrays.

    Enum fields hold numbers as they came, also unknown ones. Do not change a header once it is built. It is not
    frozen, since making a frozen one takes three times as long.
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

#: The header's lists, in field order.
lists_of = attrgetter(*LIST_FIELDS)


def header_from_message(message: expert_pb2.FrameHeader) -> Header:
    """Returns the same header from a protobuf object."""
    values: list[Any] = [getattr(message, name) for name in FIELDS]
    for index in range(16, 24):
        values[index] = np.array(values[index], F32_DTYPE if index == 21 else U32_DTYPE)
    return Header(*values)
