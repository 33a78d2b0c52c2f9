"""The table of bad frames for a worker's data plane: what lies in them, and how the worker answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from colibri.errors import Code
from colibri.v1 import expert_pb2
from colibri.wire.frame import write_frame
from colibri.wire.header import Header
from colibri.wire.limits import FrameLimits
from tests.integration.bad_input.case import ANY, Refusal, invalid, said
from tests.support.frames import f32, forward, u32

KIND = expert_pb2.FrameKind
MAX_U32, MAX_U64 = (1 << 32) - 1, (1 << 64) - 1
#: Correlation id of every bad message.
ID = 5
ROWS = 2
#: What follows from the model that workers of this suite hold (folders.PARAMS in bf16).
EXPERTS, LAYERS, HIDDEN, TOP_K = 4, 2, 32, 2
TOTAL = ROWS * HIDDEN * 2

Made = list[bytes]


@dataclass(frozen=True, slots=True)
class FrameCase:
    """`make`: the frames, given the limits of the model. `answer`: kind of the worker's reply; None: the stream ends
    with the refusal as its status."""

    id: str
    how: str
    make: Callable[[FrameLimits], Made]
    refusal: Refusal
    answer: int | None = KIND.FRAME_KIND_ERROR


def frame(header: Header, tensor: bytes) -> bytes:
    return b"".join(write_frame(header, tensor))


def good(limits: FrameLimits, **changes: Any) -> Header:
    """Two rows, each to the first and the last expert, with some fields of the header changed."""
    header = forward(limits, ID, ROWS)
    for name, value in changes.items():
        setattr(header, name, value)
    return header


def _case(
    id: str, how: str, refusal: Refusal, answer: int | None = KIND.FRAME_KIND_ERROR, **changes: Any
) -> FrameCase:
    def make(limits: FrameLimits) -> Made:
        return [frame(good(limits, **changes), bytes(TOTAL))]

    return FrameCase(f"frame-{id}", how, make, refusal, answer)


def _tensor(id: str, how: str, size: int, refusal: Refusal, **changes: Any) -> FrameCase:
    return FrameCase(
        f"frame-{id}", how, lambda limits: [frame(good(limits, **changes), bytes(size))], refusal
    )


def _pieces(id: str, how: str, refusal: Refusal, *pieces: tuple[int, bool, int]) -> FrameCase:
    """pieces: (chunk_index, last_chunk, bytes of its tensor) of one message."""

    def make(limits: FrameLimits) -> Made:
        frames = []
        for index, last, size in pieces:
            piece = Header(correlation_id=ID, chunk_index=index, last_chunk=last)
            frames.append(frame(piece if index else good(limits, last_chunk=last), bytes(size)))
        return frames

    return FrameCase(f"frame-{id}", how, make, refusal)


def _bytes(id: str, how: str, data: bytes) -> FrameCase:
    text = f"frame: expected a colibri.v1.Frame, got {len(data)} bytes that are none"
    return FrameCase(f"bytes-{id}", how, lambda limits: [data], said(Code.DATA_LOSS, text), None)


def _damaged(limits: FrameLimits) -> Made:
    data = bytearray(frame(good(limits), bytes(TOTAL)))
    data[-1] ^= 0x10
    return [bytes(data)]


def _not_here(limits: FrameLimits) -> Made:
    """Asks for every expert; a worker of two holds half of them."""
    header = forward(limits, ID, EXPERTS)
    header.group_expert, header.group_count = np.arange(EXPERTS, dtype=np.uint32), u32(*[1] * EXPERTS)
    for name in ("entry_row", "entry_unit"):
        setattr(header, name, np.arange(EXPERTS, dtype=np.uint32))
    header.entry_slot = u32(*[0] * EXPERTS)
    header.entry_weight = f32(*[0.5] * EXPERTS)
    header.unit_slots = u32(*[1] * EXPERTS)
    return [frame(header, bytes(EXPERTS * HIDDEN * 2))]


_BF16 = "2 (bf16)"
_TOTAL = f"{TOTAL} ({ROWS} rows of {HIDDEN})"

SCALARS = (
    _case("kind-none", "a frame without a kind", invalid("kind", "FORWARD or CANCEL", "0"), kind=0),
    _case("kind-result", "a RESULT from a router", invalid("kind", "FORWARD or CANCEL", "16"), kind=16),
    _case("kind-unknown", "a kind of the future", invalid("kind", "FORWARD or CANCEL", "12345"), kind=12345),
    _case("incarnation", "for another life of the worker",
          said(Code.ABORTED, f"incarnation: expected {ANY}, got 6"), KIND.FRAME_KIND_STALE_EPOCH, incarnation=6),
    _case("layer", "a layer that the model has not", invalid("layer", "0 to 1", "2"), layer=LAYERS),
    _case("layer-32-bits", "layer 2^32 - 1", invalid("layer", "0 to 1", str(MAX_U32)), layer=MAX_U32),
    _case("mode", "another compute mode", invalid("compute_mode", _BF16, "1"), compute_mode=1),
    _case("mode-unknown", "a compute mode of the future", invalid("compute_mode", _BF16, "99"), compute_mode=99),
    _case("dtype", "rows in another dtype", invalid("wire_dtype", _BF16, "1"), wire_dtype=1),
    _case("dtype-none", "rows of no dtype", invalid("wire_dtype", _BF16, "0"), wire_dtype=0),
    _case("hidden", "another hidden size", invalid("hidden", str(HIDDEN), "31"), hidden=31),
    _case("hidden-zero", "hidden 0", invalid("hidden", str(HIDDEN), "0"), hidden=0),
    _case("hidden-32-bits", "hidden 2^32 - 1", invalid("hidden", str(HIDDEN), str(MAX_U32)), hidden=MAX_U32),
    _case("rows-zero", "zero rows", invalid("rows", "1 to 1024", "0"), rows=0),
    _case("rows-beyond", "one row too many", invalid("rows", "1 to 1024", "1025"), rows=1025),
    _case("rows-32-bits", "2^32 - 1 rows", invalid("rows", "1 to 1024", str(MAX_U32)), rows=MAX_U32),
    _case("product", "rows x hidden beyond 64 bits with the dtype",
          invalid("hidden", str(HIDDEN), str(MAX_U32)), rows=MAX_U32, hidden=MAX_U32, total_bytes=MAX_U64),
    _case("rows-lie", "more rows than bytes",
          invalid("total_bytes", f"{3 * HIDDEN * 2} (3 rows of {HIDDEN})", str(TOTAL)), rows=3),
    _case("total-zero", "a total of 0 bytes", invalid("total_bytes", _TOTAL, "0"), total_bytes=0),
    _case("total-64-bits", "a total of 2^64 - 1 bytes", invalid("total_bytes", _TOTAL, str(MAX_U64)),
          total_bytes=MAX_U64),
    _case("units-zero", "no units", invalid("units", "1 to 4 (the number of entries)", "0"), units=0),
    _case("units-32-bits", "2^32 - 1 units", invalid("units", "1 to 4 (the number of entries)", str(MAX_U32)),
          units=MAX_U32),
    _case("trace", "a trace id of 3 bytes", invalid("trace_id", "0 or 16 bytes", "3"), trace_id=b"abc"),
    _case("expired", "a microsecond left",
          said(Code.DEADLINE_EXCEEDED, f"w0: the time ran out {ANY} s before compute could begin"),
          KIND.FRAME_KIND_EXPIRED, remaining_us=1),
    FrameCase("frame-not-loaded", "an expert that another worker holds", _not_here,
              said(Code.FAILED_PRECONDITION, f"expert {ANY} of layer 0 is not loaded here"),
              KIND.FRAME_KIND_NOT_LOADED),
)  # fmt: skip

LISTS = (
    _case("expert", "an expert that the model has not", invalid("group_expert", "0 to 3", "4"), group_expert=u32(0, 4)),
    _case("expert-32-bits", "expert 2^32 - 1", invalid("group_expert", "0 to 3", str(MAX_U32)),
          group_expert=u32(0, MAX_U32)),
    _case("experts-unsorted", "experts not ascending", invalid("group_expert", "strictly ascending ids", "[3, 0]"),
          group_expert=u32(3, 0)),
    _case("experts-twice", "an expert twice", invalid("group_expert", "strictly ascending ids", "[3, 3]"),
          group_expert=u32(3, 3)),
    _case("experts-none", "no groups", invalid("group_expert", "1 to 4 groups", "0"), group_expert=u32()),
    _case("experts-many", "more groups than experts", invalid("group_expert", "1 to 4 groups", "5"),
          group_expert=u32(0, 1, 2, 3, 4)),
    _case("counts-fewer", "a count missing", invalid("group_count", "2 (one for each group)", "1"),
          group_count=u32(4)),
    _case("counts-zero", "an empty group", invalid("group_count", "counts above 0 with the sum 4", "[0, 4]"),
          group_count=u32(0, 4)),
    _case("counts-sum", "counts beyond the entries", invalid("group_count", "counts above 0 with the sum 4", "[3, 3]"),
          group_count=u32(3, 3)),
    _case("counts-wrap", "counts that wrap to the right sum in 32 bits",
          invalid("group_count", "counts above 0 with the sum 4", f"[{MAX_U32}, 5]"), group_count=u32(MAX_U32, 5)),
    _case("entries-none", "no entries", invalid("entry_row", "1 to 4 entries (rows x top_k)", "0"), entry_row=u32()),
    _case("entries-many", "more entries than rows x top_k", invalid("entry_row", "1 to 4 entries (rows x top_k)", "5"),
          entry_row=u32(0, 1, 0, 1, 0)),
    _case("slots-fewer", "a slot missing", invalid("entry_slot", "4 (as many as entry_row)", "3"),
          entry_slot=u32(1, 1, 0)),
    _case("weights-fewer", "no weights", invalid("entry_weight", "4 (as many as entry_row)", "0"), entry_weight=f32()),
    _case("row-beyond", "an entry for a row that is not there", invalid("entry_row", "0 to 1", "7"),
          entry_row=u32(0, 7, 0, 1)),
    _case("slot-beyond", "slot 2^32 - 1", invalid("entry_slot", "0 to 1", str(MAX_U32)),
          entry_slot=u32(1, 1, MAX_U32, 0)),
    _case("unit-beyond", "an entry for a unit that is not there", invalid("entry_unit", "0 to 1", "2"),
          entry_unit=u32(0, 2, 0, 1)),
    _case("weight-nan", "a weight that is NaN", invalid("entry_weight", "finite weights", "NaN or Inf"),
          entry_weight=f32(0.25, np.nan, 0.75, 0.75)),
    _case("weight-inf", "a weight that is infinite", invalid("entry_weight", "finite weights", "NaN or Inf"),
          entry_weight=f32(0.25, 0.25, np.inf, 0.75)),
    _case("unit-slot-twice", "a slot twice in a unit",
          invalid("entry_slot", "each slot of unit 0 once", "slot 0 again"), entry_slot=u32(0, 1, 0, 0)),
    _case("unit-of-two-rows", "a unit of two rows", invalid("entry_row", "row 0, the row of unit 0", "1"),
          entry_row=u32(0, 1, 1, 1)),
    _case("unit-slots", "a unit with fewer slots than it says",
          invalid("unit 0", "the slots 0..2, as its unit_slots says", "slots [0, 1]"), unit_slots=u32(3, 2)),
    _case("unit-slots-zero", "a unit of no slots", invalid("unit 1", "at least one slot", "unit_slots 0"),
          unit_slots=u32(2, 0)),
    _case("unit-slots-missing", "a unit without its number of slots",
          invalid("unit_slots", "2 (one for each unit)", "1"), unit_slots=u32(2)),
    _case("status", "statuses in a request", invalid("unit_status", "0 (none in a request)", "2"),
          unit_status=u32(0, 0)),
)  # fmt: skip

PIECES = (
    FrameCase("frame-checksum", "a bit turned on the way", _damaged,
              said(Code.DATA_LOSS, f"crc32c: expected 0x{ANY} (computed), got 0x{ANY}")),
    _tensor("short", "a byte fewer than said", TOTAL - 1,
            invalid("total_bytes", f"{TOTAL - 1}, the bytes of the only chunk", str(TOTAL))),
    _tensor("long", "a byte more than said", TOTAL + 1,
            invalid("total_bytes", f"{TOTAL + 1}, the bytes of the only chunk", str(TOTAL))),
    _tensor("no-bytes", "no bytes at all", 0, invalid("total_bytes", "0, the bytes of the only chunk", str(TOTAL))),
    _pieces("no-first", "a message that begins with its second chunk",
            invalid("chunk_index", "0, the first chunk of a message", "1"), (1, True, 10)),
    _pieces("gap", "a chunk left out", invalid("chunk_index", "1", "2"), (0, False, 100), (2, False, 10)),
    _pieces("last-short", "a last chunk that is too short",
            invalid("tensor", "28 bytes in the last chunk", "10"), (0, False, 100), (1, True, 10)),
    _pieces("too-much", "more bytes than the whole message",
            invalid("tensor", "1 to 27 bytes", "500"), (0, False, 100), (1, False, 500)),
    _pieces("first-whole", "a first of several chunks that holds all",
            invalid("tensor", f"1 to {TOTAL - 1} bytes in a first of several chunks", str(TOTAL)), (0, False, TOTAL)),
    _pieces("twice", "a message begun twice",
            invalid("correlation_id", "an id and attempt that are not in flight", f"{ID}/0"),
            (0, False, 100), (0, False, 100)),
)  # fmt: skip

BYTES = (
    _bytes("noise", "three bytes of noise", b"\xff\xff\xff"),
    _bytes("varint", "a number of 11 bytes", b"\x08" + b"\xff" * 10 + b"\x01"),
    _bytes("beyond", "a header longer than the frame", b"\x0a\xff\xff\xff\xff\x07abc"),
    _bytes("group", "a group that never ends", b"\x0b\x0b\x0b"),
    _bytes("utf8", "an error message that is no UTF-8", b"\x0a\x05\xea\x01\x02\xff\xfe"),
    _bytes("list-ragged", "a list of three and a half numbers", b"\x0a\x11\x8a\x01\x0e" + bytes(14)),
    _bytes("http", "an HTTP request", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    FrameCase(
        "bytes-none", "an empty frame", lambda limits: [b""], invalid("kind", "FORWARD or CANCEL", "0"),
    ),
    FrameCase(
        "bytes-too-large", "a frame beyond the limit of the model",
        lambda limits: [bytes(limits.max_frame_bytes + 1)],
        said(Code.RESOURCE_EXHAUSTED, f"{ANY}: Received message larger than max ({ANY} vs. {ANY})"), None,
    ),
)  # fmt: skip

CASES = (*SCALARS, *LISTS, *PIECES, *BYTES)
