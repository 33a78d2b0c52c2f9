"""Headers and frames for tests: samples, hypothesis strategies, equality, an ordinary request."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from colibri.v1 import expert_pb2
from colibri.wire.header import FIELDS, LIST_FIELDS, Header
from colibri.wire.limits import FrameLimits

_U32 = st.integers(0, (1 << 32) - 1)
_U64 = st.integers(0, (1 << 64) - 1)
_ENUM = st.integers(0, (1 << 31) - 1)
_FLOATS = st.floats(width=32, allow_nan=False)


def u32(*values: int) -> Any:
    return np.array(values, np.uint32)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


#: Fields of a header that have 64 bits.
U64_FIELDS = (
    "correlation_id",
    "total_bytes",
    "epoch",
    "incarnation",
    "remaining_us",
    "retry_after_us",
    "queue_us",
    "compute_us",
)
_U32_LIST = st.lists(_U32, max_size=40).map(lambda values: u32(*values))

_STRATEGY: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(FIELDS, _U32),
    **dict.fromkeys(("kind", "compute_mode", "wire_dtype", "retry"), _ENUM),
    **dict.fromkeys(
        U64_FIELDS,
        _U64,
    ),
    **dict.fromkeys(LIST_FIELDS, _U32_LIST),
    "last_chunk": st.booleans(),
    "entry_weight": st.lists(_FLOATS, max_size=40).map(lambda values: f32(*values)),
    "trace_id": st.binary(max_size=20),
    "error_message": st.text(max_size=40),
}

#: Any header that the format can hold; each field is left out as often as not.
headers = st.fixed_dictionaries({}, optional=_STRATEGY).map(lambda values: Header(**values))
tensors = st.binary(max_size=300)


def fields_of(header: Header) -> dict[str, object]:
    """Comparable by ==, to the bit: lists as bytes."""
    return {
        name: (value.dtype.str, value.tobytes()) if isinstance(value, np.ndarray) else value
        for name, value in ((name, getattr(header, name)) for name in FIELDS)
    }


def message_of(header: Header, tensor: bytes) -> expert_pb2.Frame:
    """The same frame as ordinary protobuf objects."""
    values = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in ((name, getattr(header, name)) for name in FIELDS)
    }
    return expert_pb2.Frame(header=expert_pb2.FrameHeader(**values), tensor=tensor)


def forward(limits: FrameLimits, correlation_id: int = 1, rows: int = 1, **changes: Any) -> Header:
    """A request that is right: every row asks expert 0 (slot 1) and the last one (slot 0), folded into one
    unit."""
    per_row = np.arange(rows, dtype=np.uint32)
    values: dict[str, Any] = {
        "kind": expert_pb2.FRAME_KIND_FORWARD,
        "correlation_id": correlation_id,
        "last_chunk": True,
        "total_bytes": rows * limits.row_bytes,
        "epoch": 1,
        "layer": 0,
        "compute_mode": limits.mode_number,
        "wire_dtype": limits.dtype_number,
        "rows": rows,
        "hidden": limits.hidden,
        "units": rows,
        "group_expert": u32(0, limits.experts - 1),
        "group_count": u32(rows, rows),
        "entry_row": np.concatenate((per_row, per_row)),
        "entry_slot": np.repeat(u32(1, 0), rows),
        "entry_unit": np.concatenate((per_row, per_row)),
        "entry_weight": np.repeat(f32(0.25, 0.75), rows),
        "unit_slots": np.full(rows, 2, np.uint32),
    }
    values.update(changes)
    return Header(**values)
