"""Check what a message claims before anything is made of it: shapes, counts, ranges, coverage of the units.

The loops are plain Python over lists. A decode step has few entries, so NumPy's calls would cost more than the
loop. For a long prefill the check takes about one per cent of the compute.
"""

from __future__ import annotations

from math import isfinite

from colibri.errors import InvalidInput
from colibri.v1 import expert_pb2
from colibri.wire.header import Header
from colibri.wire.limits import FrameLimits

_STATUSES = frozenset(expert_pb2.UnitStatus.values())
_PER_ENTRY = ("entry_slot", "entry_unit", "entry_weight")


def check_forward(header: Header, limits: FrameLimits) -> None:
    """Raises InvalidInput, naming the field, unless `limits` allow a FORWARD with this first header.

    Afterwards rows, entries and units are within their bounds, total_bytes is exactly what the rows need, groups
    ascend, every index points inside, and every unit is one slot of a row or a folded prefix 0..n-1 of one row.
    """
    rows, units = header.rows, header.units
    if header.compute_mode != limits.mode_number:
        raise _differs("compute_mode", header.compute_mode, limits.mode_number, limits.compute_mode)
    if header.wire_dtype != limits.dtype_number:
        raise _differs("wire_dtype", header.wire_dtype, limits.dtype_number, limits.compute_mode)
    if header.layer >= limits.layers:
        raise _beyond("layer", header.layer, limits.layers)
    if header.hidden != limits.hidden:
        raise _differs("hidden", header.hidden, limits.hidden)
    if not 1 <= rows <= limits.max_rows:
        raise InvalidInput("rows", f"1 to {limits.max_rows}", rows)
    if header.total_bytes != rows * limits.row_bytes:
        why = f"{rows} rows of {limits.hidden}"
        raise _differs("total_bytes", header.total_bytes, rows * limits.row_bytes, why)
    entries = header.entry_row.size
    if not 1 <= entries <= rows * limits.top_k:
        raise InvalidInput("entry_row", f"1 to {rows * limits.top_k} entries (rows x top_k)", entries)
    if not header.entry_slot.size == header.entry_unit.size == header.entry_weight.size == entries:
        name = next(n for n in _PER_ENTRY if getattr(header, n).size != entries)
        raise _differs(name, getattr(header, name).size, entries, "as many as entry_row")
    if not 1 <= units <= entries:
        raise InvalidInput("units", f"1 to {entries} (the number of entries)", units)
    if header.unit_slots.size != units:
        raise _differs("unit_slots", header.unit_slots.size, units, "one for each unit")
    if header.unit_status.size:
        raise _differs("unit_status", header.unit_status.size, 0, "none in a request")
    if len(header.trace_id) not in (0, 16):
        raise InvalidInput("trace_id", "0 or 16 bytes", len(header.trace_id))
    _check_groups(header, entries, limits.experts)
    _check_units(header, rows, units, limits.top_k)


def check_result(header: Header, units: int, limits: FrameLimits) -> None:
    """Raises InvalidInput unless a RESULT with this first header answers a request of `units` units."""
    if header.units != units:
        raise _differs("units", header.units, units)
    if header.hidden != limits.hidden:
        raise _differs("hidden", header.hidden, limits.hidden)
    if header.total_bytes != units * limits.result_row_bytes:
        raise _differs(
            "total_bytes", header.total_bytes, units * limits.result_row_bytes, f"{units} fp32 rows"
        )
    if header.unit_status.size:
        if header.unit_status.size != units:
            raise _differs("unit_status", header.unit_status.size, units, "one for each unit, or none")
        unknown = set(header.unit_status.tolist()) - _STATUSES
        if unknown:
            raise InvalidInput("unit_status", f"one of {sorted(_STATUSES)}", min(unknown))


def _check_groups(header: Header, entries: int, experts: int) -> None:
    ids: list[int] = header.group_expert.tolist()
    counts: list[int] = header.group_count.tolist()
    if not 1 <= len(ids) <= min(experts, entries):
        raise InvalidInput("group_expert", f"1 to {min(experts, entries)} groups", len(ids))
    if len(counts) != len(ids):
        raise _differs("group_count", len(counts), len(ids), "one for each group")
    if ids != sorted(set(ids)):
        raise InvalidInput("group_expert", "strictly ascending ids", ids)
    if ids[-1] >= experts:
        raise _beyond("group_expert", ids[-1], experts)
    if min(counts) < 1 or sum(counts) != entries:
        raise InvalidInput("group_count", f"counts above 0 with the sum {entries}", counts)


def _check_units(header: Header, rows: int, units: int, top_k: int) -> None:
    entry_row: list[int] = header.entry_row.tolist()
    entry_slot: list[int] = header.entry_slot.tolist()
    entry_unit: list[int] = header.entry_unit.tolist()
    unit_slots: list[int] = header.unit_slots.tolist()
    if max(entry_row) >= rows:
        raise _beyond("entry_row", max(entry_row), rows)
    if max(entry_slot) >= top_k:
        raise _beyond("entry_slot", max(entry_slot), top_k)
    if max(entry_unit) >= units:
        raise _beyond("entry_unit", max(entry_unit), units)
    if not all(map(isfinite, header.entry_weight.tolist())):
        raise InvalidInput("entry_weight", "finite weights", "NaN or Inf")
    unit_row = [rows] * units
    slots_seen = [0] * units
    for row, slot, unit in zip(entry_row, entry_slot, entry_unit, strict=True):
        bit = 1 << slot
        if slots_seen[unit] & bit:
            raise InvalidInput("entry_slot", f"each slot of unit {unit} once", f"slot {slot} again")
        if slots_seen[unit] and unit_row[unit] != row:
            raise InvalidInput("entry_row", f"row {unit_row[unit]}, the row of unit {unit}", row)
        unit_row[unit] = row
        slots_seen[unit] |= bit
    for unit, (slots, seen) in enumerate(zip(unit_slots, slots_seen, strict=True)):
        # One slot of any number, or all of 0..n-1: then seen + 1 is 2^n.
        good = (
            seen.bit_count() == 1
            if slots == 1
            else slots > 1 and seen.bit_length() == slots and not seen & seen + 1
        )
        if not good:
            if not slots:
                raise InvalidInput(f"unit {unit}", "at least one slot", "unit_slots 0")
            found = [slot for slot in range(top_k) if seen >> slot & 1]
            expected = "one slot" if slots == 1 else f"the slots 0..{slots - 1}, as its unit_slots says"
            raise InvalidInput(f"unit {unit}", expected, f"slots {found}")


def _differs(field: str, got: int, expected: int, why: str = "") -> InvalidInput:
    return InvalidInput(field, f"{expected} ({why})" if why else str(expected), got)


def _beyond(field: str, got: int, bound: int) -> InvalidInput:
    return InvalidInput(field, f"0 to {bound - 1}", got)
