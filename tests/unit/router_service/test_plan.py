"""Properties of the plan, and a naive oracle: any placement sums a row's slots in slot order, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.errors import InvalidInput
from colibri.kernels.api import U32, GateResult
from colibri.router_service.plan import (
    DIVIDED_ROWS,
    SMALL_ENTRIES,
    Dispatch,
    LayerPlan,
    OwnerTable,
    plan_layer,
    plan_rows,
)
from colibri.router_service.plan_large import plan_large
from colibri.router_service.plan_small import plan_small
from colibri.router_service.plan_types import NOBODY
from colibri.row_division import PARTS, Division
from tests.support.layer_plans import HIDDEN, entries_of, execute, make_gate, merge, slot_order_sum


@st.composite
def cases(draw: st.DrawFn) -> tuple[GateResult, U32, int]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    top_k = draw(st.sampled_from([1, 2, 4, 16]))
    experts = draw(st.sampled_from([e for e in (1, 2, 4, 8, 16, 64) if e >= top_k]))
    workers = draw(st.sampled_from([1, 2, 3, 8, 70]))
    rows = draw(st.sampled_from([0, 1, 2, 3, 15, 16, 17, 31, 33, 128]))
    # Fewer owners than workers: some get no rows, and prefixes grow long.
    crowd = draw(st.sampled_from([workers, 1, min(2, workers)]))
    owner = rng.integers(workers - crowd, workers, experts).astype(np.uint32)
    return make_gate(rng, rows, top_k, experts, draw(st.sampled_from([0.0, 0.0, 0.3, 1.0]))), owner, workers


def naive_units(gate: GateResult, owner: U32, row: int) -> list[tuple[int, int, int]]:
    """(worker, first slot, slots) of a row, from the rule's words."""
    owners = [int(owner[e]) for e in gate.experts[row]]
    prefix = next((s for s, w in enumerate(owners) if w != owners[0]), len(owners))
    return [(owners[0], 0, prefix), *((w, s, 1) for s, w in enumerate(owners) if s >= prefix)]


@given(cases())
@settings(max_examples=300, deadline=None)
def test_every_slot_is_sent_once_to_its_owner(case: tuple[GateResult, U32, int]) -> None:
    gate, owner, workers = case
    plan = plan_layer(gate, owner, workers)
    sent = []
    for dispatch in plan.dispatches:
        for expert, row, slot, _, weight in entries_of(dispatch):
            assert owner[expert] == dispatch.worker
            sent.append((row, slot, expert, weight))
    expected = [
        (row, slot, int(gate.experts[row, slot]), float(gate.weights[row, slot]))
        for row in np.flatnonzero(gate.ok).tolist()
        for slot in range(gate.experts.shape[1])
    ]
    assert sorted(sent) == expected


@given(cases())
@settings(max_examples=300, deadline=None)
def test_dispatches_are_well_formed(case: tuple[GateResult, U32, int]) -> None:
    gate, owner, workers = case
    plan = plan_layer(gate, owner, workers)
    owners = {int(owner[e]) for e in gate.experts[gate.ok].ravel()}
    assert [d.worker for d in plan.dispatches] == sorted(owners)
    for dispatch in plan.dispatches:
        batch = dispatch.batch
        assert (np.diff(dispatch.rows.astype(np.int64)) > 0).all()
        assert (np.diff(batch.group_expert.astype(np.int64)) > 0).all()
        assert (batch.group_count > 0).all()
        entry_lists = (batch.entry_row, batch.entry_slot, batch.entry_unit, batch.entry_weight)
        assert [len(a) for a in entry_lists] == [int(batch.group_count.sum())] * 4
        assert set(batch.entry_row.tolist()) == set(range(len(dispatch.rows)))
        by_expert_then_row = [(e, r) for e, r, *_ in entries_of(dispatch)]
        assert by_expert_then_row == sorted(by_expert_then_row)
        units = list(zip(dispatch.unit_row.tolist(), dispatch.unit_first_slot.tolist(), strict=True))
        assert units == sorted(units)
        assert len(units) == len(batch.unit_slots)
        for array in (dispatch.rows, dispatch.unit_row, dispatch.unit_first_slot, *_index_lists(dispatch)):
            assert array.dtype == np.uint32
            assert array.flags.c_contiguous
        assert batch.entry_weight.dtype == np.float32


def _index_lists(dispatch: Dispatch) -> tuple[U32, ...]:
    b = dispatch.batch
    return b.group_expert, b.group_count, b.entry_row, b.entry_slot, b.entry_unit, b.unit_slots


@given(cases())
@settings(max_examples=300, deadline=None)
def test_units_follow_the_rule_and_merge_by_slot(case: tuple[GateResult, U32, int]) -> None:
    gate, owner, workers = case
    plan = plan_layer(gate, owner, workers)
    assert plan.row_offsets.shape == (len(gate.ok) + 1,)
    seen = set()
    for row in range(len(gate.ok)):
        terms = []
        for t in range(plan.row_offsets[row], plan.row_offsets[row + 1]):
            dispatch, unit = plan.dispatches[plan.part[t]], int(plan.index[t])
            seen.add((int(plan.part[t]), unit))
            assert dispatch.unit_row[unit] == row
            slots = sorted(slot for _, r, slot, u, _ in entries_of(dispatch) if u == unit and r == row)
            first, count = int(dispatch.unit_first_slot[unit]), int(dispatch.batch.unit_slots[unit])
            assert slots == list(range(first, first + count))
            terms.append((dispatch.worker, first, count))
        assert terms == (naive_units(gate, owner, row) if gate.ok[row] else [])
    assert len(seen) == len(plan.part) == sum(len(d.unit_row) for d in plan.dispatches)


@given(cases())
@settings(max_examples=300, deadline=None)
def test_both_ways_make_the_same_plan(case: tuple[GateResult, U32, int]) -> None:
    gate, owner, workers = case
    table = OwnerTable.of(owner, workers)
    assert_same_plan(plan_small(gate, table, None), plan_large(gate, table, None))


@st.composite
def divided_cases(draw: st.DrawFn) -> tuple[GateResult, Division, int]:
    gate, owner, workers = draw(cases())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    division = []
    for first in owner.tolist():
        names = [first, *(w for w in rng.permutation(workers).tolist() if w != first)]
        names = names[: int(rng.integers(1, 4))]
        cuts = np.sort(rng.choice(np.arange(1, PARTS), len(names) - 1, replace=False))
        parts = np.diff([0, *cuts.tolist(), PARTS]).tolist()
        division.append(tuple(zip(names, parts, strict=True)))
    return gate, tuple(division), workers


@given(divided_cases(), st.integers(0, 2**32 - 1))
@settings(max_examples=300, deadline=None)
def test_divided_experts(case: tuple[GateResult, Division, int], seed: int) -> None:
    """Both ways alike; whoever is sent a row answers for its expert; and the sum has the one order, bit for bit."""
    gate, division, workers = case
    table = OwnerTable.of_division(division, workers)
    rng = np.random.default_rng(seed)
    line = None if rng.random() < 0.5 else int(rng.integers(table.turns))
    plan = plan_small(gate, table, line)
    assert_same_plan(plan, plan_large(gate, table, line))
    sent = []
    for dispatch in plan.dispatches:
        for expert, row, slot, _, _ in entries_of(dispatch):
            assert dispatch.worker in [worker for worker, _ in division[expert]]
            sent.append((row, slot))
        units = list(zip(dispatch.unit_row.tolist(), dispatch.unit_first_slot.tolist(), strict=True))
        assert units == sorted(units)
    rows = np.flatnonzero(gate.ok).tolist()
    assert sorted(sent) == [(row, slot) for row in rows for slot in range(gate.experts.shape[1])]
    shape = (len(gate.ok), len(division), HIDDEN)
    expert_out = (rng.standard_normal(shape) * np.exp2(rng.integers(-12, 12, shape))).astype(np.float32)
    got = merge(plan, execute(plan, expert_out), len(gate.ok))
    assert np.array_equal(got.view(np.uint32), slot_order_sum(gate, expert_out).view(np.uint32))


def test_any_first_rows_of_a_divided_expert_are_divided_as_planned() -> None:
    table = OwnerTable.of_division((((4, 640), (1, 256), (2, 128)), ((3, PARTS),)), 5)
    assert table.owners == (NOBODY, 3)
    line = np.array(table.divided[0])
    assert line[0] == 4
    for rows in range(1, PARTS + 1):
        for worker, parts in ((4, 640), (1, 256), (2, 128)):
            assert abs(np.count_nonzero(line[:rows] == worker) - rows * parts / PARTS) <= 5
    assert [np.count_nonzero(line == w) for w in (4, 1, 2)] == [640, 256, 128]


def test_a_small_batch_reads_no_expert_twice_and_batches_take_turns() -> None:
    """Below DIVIDED_ROWS an expert, each expert of a batch has one worker; over batches all holders have their part."""
    division = (((4, 640), (1, 256), (2, 128)), ((3, PARTS),))
    table = OwnerTable.of_division(division, 5)

    def workers_of(rows: int, turn: int) -> dict[int, set[int]]:
        experts = np.tile(np.array([[0, 1]], np.uint16), (rows, 1))
        gate = GateResult(experts, np.full((rows, 2), 0.5, np.float32), np.ones(rows, np.bool_))
        found: dict[int, set[int]] = {}
        for dispatch in plan_rows(gate, table, turn).dispatches:
            for expert, *_ in entries_of(dispatch):
                found.setdefault(expert, set()).add(dispatch.worker)
        return found

    taken = []
    for turn in range(PARTS):
        found = workers_of(DIVIDED_ROWS - 1, turn)
        assert found[1] == {3}
        (worker,) = found[0]
        taken.append(worker)
    assert [taken.count(w) for w in (4, 1, 2)] == [640, 256, 128]
    assert workers_of(DIVIDED_ROWS, 7) == {0: {4, 1, 2}, 1: {3}}


def assert_same_plan(a: LayerPlan, b: LayerPlan) -> None:
    for name in ("part", "index", "row_offsets"):
        assert getattr(a, name).dtype == getattr(b, name).dtype == np.uint32
        assert getattr(a, name).tolist() == getattr(b, name).tolist()
    assert [d.worker for d in a.dispatches] == [d.worker for d in b.dispatches]
    for left, right in zip(a.dispatches, b.dispatches, strict=True):
        assert entries_of(left) == entries_of(right)
        pairs = zip(
            (left.rows, left.unit_row, left.unit_first_slot, *_index_lists(left)),
            (right.rows, right.unit_row, right.unit_first_slot, *_index_lists(right)),
            strict=True,
        )
        assert all(x.tolist() == y.tolist() and x.dtype == y.dtype for x, y in pairs)


@given(cases(), st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None)
def test_any_placement_equals_the_slot_order_sum(case: tuple[GateResult, U32, int], seed: int) -> None:
    gate, owner, workers = case
    # Wide exponents: a sum in another order would differ.
    rng = np.random.default_rng(seed)
    shape = (len(gate.ok), len(owner), HIDDEN)
    expert_out = (rng.standard_normal(shape) * np.exp2(rng.integers(-12, 12, shape))).astype(np.float32)
    plan = plan_layer(gate, owner, workers)
    got = merge(plan, execute(plan, expert_out), len(gate.ok))
    assert np.array_equal(got.view(np.uint32), slot_order_sum(gate, expert_out).view(np.uint32))


def test_the_oracle_sees_another_order() -> None:
    rng = np.random.default_rng(3)
    gate = make_gate(rng, 32, 4, 8)
    expert_out = rng.standard_normal((32, 8, HIDDEN)).astype(np.float32)
    turned = GateResult(gate.experts[:, ::-1].copy(), gate.weights[:, ::-1].copy(), gate.ok)
    assert not np.array_equal(slot_order_sum(gate, expert_out), slot_order_sum(turned, expert_out))


@pytest.mark.parametrize("workers", [2, 3])
def test_all_placements_of_four_experts(workers: int) -> None:
    rng = np.random.default_rng(workers)
    gate = make_gate(rng, 6, 4, 4)
    expert_out = rng.standard_normal((6, 4, HIDDEN)).astype(np.float32)
    expected = slot_order_sum(gate, expert_out)
    for owners in itertools.product(range(workers), repeat=4):
        plan = plan_layer(gate, np.array(owners, dtype=np.uint32), workers)
        assert np.array_equal(merge(plan, execute(plan, expert_out), 6), expected)


def test_one_worker_folds_every_row_whole() -> None:
    gate = make_gate(np.random.default_rng(0), 40, 2, 8)
    (dispatch,) = plan_layer(gate, np.zeros(8, dtype=np.uint32), 1).dispatches
    assert dispatch.batch.unit_slots.tolist() == [2] * 40
    assert dispatch.rows.tolist() == list(range(40))


@pytest.mark.parametrize("rows", [1, SMALL_ENTRIES])
@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda g: GateResult(g.experts + np.uint16(8), g.weights, g.ok), "gate.experts"),
        (lambda g: GateResult(g.experts, g.weights[:, :1], g.ok), "gate.weights"),
        (lambda g: GateResult(g.experts[:, :0], g.weights[:, :0], g.ok), "gate.experts"),
        (lambda g: GateResult(g.experts, g.weights, np.append(g.ok, True)), "gate.ok"),
    ],
)
def test_a_wrong_gate_is_named(rows: int, change: Callable[[GateResult], GateResult], names: str) -> None:
    gate = change(make_gate(np.random.default_rng(1), rows, 2, 8))
    with pytest.raises(InvalidInput, match=names):
        plan_layer(gate, np.zeros(8, dtype=np.uint32), 1)


def test_an_owner_out_of_range_is_named() -> None:
    gate = make_gate(np.random.default_rng(1), 1, 2, 8)
    with pytest.raises(InvalidInput, match="owner"):
        plan_layer(gate, np.full(8, 2, dtype=np.uint32), 2)
    with pytest.raises(InvalidInput, match="owner"):
        plan_layer(gate, np.zeros((8, 1), dtype=np.uint32), 2)
