"""A request's and a result's claims: each wrong one is refused by name, every right one passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.errors import InvalidInput
from colibri.wire.header import Header
from colibri.wire.limits import FrameLimits
from colibri.wire.units import check_forward, check_result
from tests.support.frames import f32, forward, u32

LIMITS = FrameLimits(layers=2, experts=4, top_k=2, hidden=8, compute_mode="bf16", max_rows=16)


@pytest.mark.parametrize("rows", [1, 2, 15, 16])
def test_a_right_request(rows: int) -> None:
    check_forward(forward(LIMITS, rows=rows), LIMITS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compute_mode": 1}, r"compute_mode: expected 2 \(bf16\), got 1"),
        ({"compute_mode": 99}, "compute_mode: expected 2"),
        ({"wire_dtype": 0}, r"wire_dtype: expected 2 \(bf16\), got 0"),
        ({"layer": 2}, "layer: expected 0 to 1, got 2"),
        ({"hidden": 9}, "hidden: expected 8, got 9"),
        ({"hidden": (1 << 32) - 1}, "hidden: expected 8, got 4294967295"),
        ({"rows": 0}, "rows: expected 1 to 16, got 0"),
        ({"rows": 17}, "rows: expected 1 to 16, got 17"),
        ({"rows": (1 << 32) - 1}, "rows: expected 1 to 16, got 4294967295"),
        ({"rows": 2}, r"total_bytes: expected 32 \(2 rows of 8\), got 16"),
        ({"total_bytes": 0}, r"total_bytes: expected 16 \(1 rows of 8\), got 0"),
        ({"total_bytes": (1 << 64) - 1}, "total_bytes: expected 16"),
        ({"entry_row": u32()}, r"entry_row: expected 1 to 2 entries \(rows x top_k\), got 0"),
        ({"entry_row": u32(0, 0, 0)}, r"entry_row: expected 1 to 2 entries"),
        ({"entry_slot": u32(1)}, r"entry_slot: expected 2 \(as many as entry_row\), got 1"),
        ({"entry_unit": u32(0, 0, 0)}, r"entry_unit: expected 2 \(as many as entry_row\), got 3"),
        ({"entry_weight": f32()}, r"entry_weight: expected 2 \(as many as entry_row\), got 0"),
        ({"units": 0}, r"units: expected 1 to 2 \(the number of entries\), got 0"),
        ({"units": 3}, r"units: expected 1 to 2"),
        ({"unit_slots": u32()}, r"unit_slots: expected 1 \(one for each unit\), got 0"),
        ({"unit_status": u32(0)}, r"unit_status: expected 0 \(none in a request\), got 1"),
        ({"trace_id": b"short"}, "trace_id: expected 0 or 16 bytes, got 5"),
        ({"group_expert": u32(), "group_count": u32()}, "group_expert: expected 1 to 2 groups, got 0"),
        ({"group_expert": u32(0, 1, 2)}, "group_expert: expected 1 to 2 groups, got 3"),
        ({"group_count": u32(2)}, r"group_count: expected 2 \(one for each group\), got 1"),
        ({"group_expert": u32(3, 0)}, r"group_expert: expected strictly ascending ids, got \[3, 0\]"),
        ({"group_expert": u32(3, 3)}, "group_expert: expected strictly ascending ids"),
        ({"group_expert": u32(0, 4)}, "group_expert: expected 0 to 3, got 4"),
        ({"group_count": u32(0, 2)}, r"group_count: expected counts above 0 with the sum 2, got \[0, 2\]"),
        ({"group_count": u32(1, 2)}, "group_count: expected counts above 0 with the sum 2"),
        ({"group_count": u32(3, (1 << 32) - 1)}, "group_count: expected counts above 0 with the sum 2"),
        ({"entry_row": u32(0, 1)}, "entry_row: expected 0 to 0, got 1"),
        ({"entry_slot": u32(2, 0)}, "entry_slot: expected 0 to 1, got 2"),
        ({"entry_slot": u32((1 << 32) - 1, 0)}, "entry_slot: expected 0 to 1, got 4294967295"),
        ({"entry_unit": u32(0, 1)}, "entry_unit: expected 0 to 0, got 1"),
        ({"entry_weight": f32(np.nan, 1)}, "entry_weight: expected finite weights, got NaN or Inf"),
        ({"entry_weight": f32(1, -np.inf)}, "entry_weight: expected finite weights, got NaN or Inf"),
        ({"entry_slot": u32(0, 0)}, "entry_slot: expected each slot of unit 0 once, got slot 0 again"),
        ({"unit_slots": u32(1)}, r"unit 0: expected one slot, got slots \[0, 1\]"),
        ({"unit_slots": u32(0)}, "unit 0: expected at least one slot, got unit_slots 0"),
        (
            {"unit_slots": u32(3)},
            r"unit 0: expected the slots 0..2, as its unit_slots says, got slots \[0, 1\]",
        ),
    ],
)
def test_a_wrong_request(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_forward(replace(forward(LIMITS), **change), LIMITS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"entry_unit": u32(0, 0, 1, 0), "entry_slot": u32(1, 1, 0, 0)},
            r"entry_slot: expected each slot of unit 0 once",
        ),
        (
            {"entry_unit": u32(0, 1, 1, 0), "entry_slot": u32(1, 1, 0, 0)},
            r"entry_row: expected row 1, the row of unit 1, got 0",
        ),
        (
            {"units": 3, "unit_slots": u32(1, 1, 2), "entry_unit": u32(2, 0, 1, 2)},
            r"entry_row: expected row 0, the row of unit 2, got 1",
        ),
        (
            {"units": 3, "unit_slots": u32(2, 1, 1), "entry_unit": u32(0, 1, 0, 1)},
            r"unit 1: expected one slot, got slots \[0, 1\]",
        ),
        (
            {"units": 3, "unit_slots": u32(2, 2, 1), "entry_unit": u32(0, 1, 0, 2)},
            r"unit 1: expected the slots 0..1, as its unit_slots says, got slots \[1\]",
        ),
    ],
)
def test_units_of_two_rows(change: dict[str, Any], message: str) -> None:
    """Rows 0 and 1, both with experts 0 (slot 1) and 3 (slot 0)."""
    with pytest.raises(InvalidInput, match=message):
        check_forward(forward(LIMITS, rows=2, **change), LIMITS)


def test_a_unit_without_entries() -> None:
    change = {"units": 2, "unit_slots": u32(2, 1), "entry_unit": u32(0, 0)}
    with pytest.raises(InvalidInput, match=r"unit 1: expected one slot, got slots \[\]"):
        check_forward(forward(LIMITS, **change), LIMITS)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Header, FrameLimits]:
    """Any dispatch a router may make: each row's slots split into a folded prefix and single slots."""
    experts = draw(st.integers(1, 9))
    top_k = draw(st.integers(1, min(4, experts)))
    rows = draw(st.integers(1, 12))
    limits = FrameLimits(3, experts, top_k, 4, "fp32", max_rows=12)
    entries: list[tuple[int, int, int, int]] = []
    unit_slots: list[int] = []
    for row in range(rows):
        chosen = draw(st.permutations(range(experts)))[:top_k]
        folded = draw(st.integers(0, top_k))
        kept = draw(st.sets(st.integers(folded, top_k - 1))) if folded < top_k else set()
        if not folded and not kept:
            kept = {0}
        if folded:
            entries += [(chosen[slot], row, slot, len(unit_slots)) for slot in range(folded)]
            unit_slots.append(folded)
        for slot in sorted(kept):
            entries.append((chosen[slot], row, slot, len(unit_slots)))
            unit_slots.append(1)
    entries.sort()
    groups = sorted({entry[0] for entry in entries})
    counts = [sum(entry[0] == group for entry in entries) for group in groups]
    header = forward(
        limits,
        rows=rows,
        layer=2,
        units=len(unit_slots),
        group_expert=u32(*groups),
        group_count=u32(*counts),
        entry_row=u32(*(entry[1] for entry in entries)),
        entry_slot=u32(*(entry[2] for entry in entries)),
        entry_unit=u32(*(entry[3] for entry in entries)),
        entry_weight=np.linspace(0, 1, len(entries), dtype=np.float32),
        unit_slots=u32(*unit_slots),
    )
    return header, limits


@settings(max_examples=200, deadline=None)
@given(requests())
def test_every_plan_of_a_router_passes(request: tuple[Header, FrameLimits]) -> None:
    check_forward(*request)


def result(**changes: Any) -> Header:
    values = {"kind": 16, "units": 3, "hidden": 8, "total_bytes": 3 * 8 * 4, **changes}
    return Header(**values)


def test_right_results() -> None:
    check_result(result(), 3, LIMITS)
    check_result(result(unit_status=u32(0, 1, 0)), 3, LIMITS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"units": 2}, "units: expected 3, got 2"),
        ({"hidden": 7}, "hidden: expected 8, got 7"),
        ({"total_bytes": 95}, r"total_bytes: expected 96 \(3 fp32 rows\), got 95"),
        ({"unit_status": u32(0, 1)}, r"unit_status: expected 3 \(one for each unit, or none\), got 2"),
        ({"unit_status": u32(0, 1, 7)}, r"unit_status: expected one of \[0, 1\], got 7"),
    ],
)
def test_wrong_results(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        check_result(result(**change), 3, LIMITS)
