"""Units sent again: whatever fails, however often, and wherever the units go, the layer's sum is the undisturbed
one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.kernels.api import F32, Array, ComputeMode, GateResult, PackedExpert
from colibri.kernels.arithmetic.floats import to_rows
from colibri.kernels.reference import ReferenceBackend
from colibri.router_service.plan import OwnerTable, plan_rows
from colibri.router_service.plan_types import NOBODY, Dispatch, LayerPlan
from colibri.router_service.replan import replan, splice
from tests.support.layer_plans import HIDDEN, entries_of, execute, make_gate, merge, slot_order_sum


def units_of(plan: LayerPlan, dispatches: tuple[Dispatch, ...]) -> list[list[tuple[int, int]]]:
    """Per row of the plan, its terms as (first slot, slots)."""
    rows = []
    for row in range(len(plan.row_offsets) - 1):
        terms = []
        for t in range(plan.row_offsets[row], plan.row_offsets[row + 1]):
            dispatch, unit = dispatches[plan.part[t]], int(plan.index[t])
            terms.append((int(dispatch.unit_first_slot[unit]), int(dispatch.batch.unit_slots[unit])))
        rows.append(terms)
    return rows


def disturbed(
    plan: LayerPlan, rng: np.random.Generator, experts: int, workers: int, rounds: int
) -> LayerPlan:
    """The plan after failures: each round some dispatches fail and go elsewhere, NOBODY's always do."""
    replaced = {}
    for number, dispatch in enumerate(plan.dispatches):
        stranded = dispatch.worker == NOBODY
        if not stranded and (rounds == 0 or rng.random() < 0.5):
            continue
        owner = {expert: int(rng.integers(0, workers)) for expert in range(experts)}
        if rounds > 0 and rng.random() < 0.5:
            owner = {e: NOBODY if rng.random() < 0.4 else w for e, w in owner.items()}
        replaced[number] = disturbed(replan(dispatch, owner), rng, experts, workers, max(0, rounds - 1))
    return splice(plan, replaced)


@st.composite
def layers(draw: st.DrawFn) -> tuple[GateResult, int, int, np.random.Generator]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    top_k = draw(st.sampled_from([1, 2, 3, 8]))
    experts = draw(st.sampled_from([e for e in (1, 2, 4, 8, 16) if e >= top_k]))
    rows = draw(st.sampled_from([0, 1, 2, 15, 16, 17, 31, 33]))
    workers = draw(st.sampled_from([1, 2, 3, 5]))
    return make_gate(rng, rows, top_k, experts, draw(st.sampled_from([0.0, 0.3]))), experts, workers, rng


def planned(gate: GateResult, experts: int, workers: int, rng: np.random.Generator) -> LayerPlan:
    owner = rng.integers(0, workers, experts).astype(np.uint32)
    return plan_rows(gate, OwnerTable.of(owner, workers))


@given(layers(), st.integers(0, 4))
@settings(max_examples=150, deadline=None)
def test_any_sequence_of_failures_gives_the_undisturbed_sum(
    case: tuple[GateResult, int, int, np.random.Generator], rounds: int
) -> None:
    gate, experts, workers, rng = case
    plan = planned(gate, experts, workers, rng)
    # Wide exponents: a sum in another order would differ.
    shape = (len(gate.ok), experts, HIDDEN)
    out = (rng.standard_normal(shape) * np.exp2(rng.integers(-12, 12, shape))).astype(np.float32)
    again = disturbed(plan, rng, experts, workers, rounds)
    assert all(dispatch.worker != NOBODY for dispatch in again.dispatches)
    expected = merge(plan, execute(plan, out), len(gate.ok))
    assert np.array_equal(expected.view(np.uint32), slot_order_sum(gate, out).view(np.uint32))
    got = merge(again, execute(again, out), len(gate.ok))
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))


@given(layers())
@settings(max_examples=100, deadline=None)
def test_a_plan_over_failed_units_is_well_formed(
    case: tuple[GateResult, int, int, np.random.Generator],
) -> None:
    gate, experts, workers, rng = case
    for dispatch in planned(gate, experts, workers, rng).dispatches:
        owner = {expert: int(rng.integers(NOBODY, workers)) for expert in range(experts)}
        plan = replan(dispatch, owner)
        assert [d.worker for d in plan.dispatches] == sorted({d.worker for d in plan.dispatches})
        assert len(plan.row_offsets) == len(dispatch.unit_row) + 1
        sent = sorted(entry[:3] + entry[4:] for d in plan.dispatches for entry in entries_of(d))
        assert sent == sorted(entry[:3] + entry[4:] for entry in entries_of(dispatch))
        for d in plan.dispatches:
            assert {owner[expert] for expert, *_ in entries_of(d)} == {d.worker}
            assert (np.diff(d.rows.astype(np.int64)) > 0).all()
            assert set(d.batch.entry_row.tolist()) == set(range(len(d.rows)))
            assert (np.diff(d.batch.group_expert.astype(np.int64)) > 0).all()
        # Each unit's pieces are its slots, ascending; only a prefix is folded.
        units = zip(dispatch.unit_first_slot.tolist(), dispatch.batch.unit_slots.tolist(), strict=True)
        for (first, slots), pieces in zip(units, units_of(plan, plan.dispatches), strict=True):
            assert [s for f, n in pieces for s in range(f, f + n)] == list(range(first, first + slots))
            assert all(n == 1 or f == 0 for f, n in pieces)


def test_one_other_holder_gets_the_very_same_units() -> None:
    rng = np.random.default_rng(1)
    gate = make_gate(rng, 20, 2, 8)
    for dispatch in planned(gate, 8, 3, rng).dispatches:
        plan = replan(dispatch, dict.fromkeys(range(8), 2))
        (other,) = plan.dispatches
        assert plan.index.tolist() == list(range(len(dispatch.unit_row)))
        moved = replace(dispatch, worker=2)
        for name in ("rows", "unit_row", "unit_first_slot"):
            assert getattr(other, name).tolist() == getattr(moved, name).tolist()
        for name in ("group_expert", "group_count", "entry_row", "entry_slot", "entry_unit", "entry_weight"):
            assert getattr(other.batch, name).tobytes() == getattr(moved.batch, name).tobytes()


def test_a_folded_unit_is_split_where_its_experts_lie_apart() -> None:
    gate = GateResult(
        np.array([[3, 1, 2]], np.uint16), np.array([[0.5, 0.3, 0.2]], np.float32), np.ones(1, np.bool_)
    )
    (dispatch,) = plan_rows(gate, OwnerTable.of(np.zeros(4, np.uint32), 3)).dispatches
    assert dispatch.batch.unit_slots.tolist() == [3]
    plan = replan(dispatch, {3: 1, 1: 1, 2: 2})
    assert units_of(plan, plan.dispatches) == [[(0, 2), (2, 1)]]
    plan = replan(dispatch, {3: 1, 1: 2, 2: 1})
    assert units_of(plan, plan.dispatches) == [[(0, 1), (1, 1), (2, 1)]]
    assert [d.worker for d in plan.dispatches] == [1, 2]


@pytest.mark.parametrize("mode", list(ComputeMode), ids=lambda mode: mode.value)
def test_with_kernels_that_really_compute(mode: ComputeMode) -> None:
    """The reference backend's own units and merge, folded and split."""
    backend = ReferenceBackend()
    rng = np.random.default_rng(3)
    experts, workers, hidden, ffn = 4, 3, 8, 16

    def matrix(rows: int, columns: int) -> Array:
        return to_rows(rng.standard_normal((rows, columns)), mode)

    gate_matrix = backend.pack_linear(matrix(experts, hidden), mode)
    weights: list[PackedExpert] = [
        backend.pack_expert(matrix(ffn, hidden), matrix(ffn, hidden), matrix(hidden, ffn), mode)
        for _ in range(experts)
    ]
    x = to_rows(rng.standard_normal((17, hidden)), mode)
    gate = backend.gate(x, gate_matrix, 3)

    def compute(plan: LayerPlan) -> F32:
        parts = [
            backend.expert_units(x[d.rows], [weights[e] for e in d.batch.group_expert.tolist()], d.batch)
            for d in plan.dispatches
        ]
        return backend.merge(parts, plan.part, plan.index, plan.row_offsets)

    whole = compute(plan_rows(gate, OwnerTable.of(np.zeros(experts, np.uint32), 1)))
    for _ in range(30):
        again = disturbed(planned(gate, experts, workers, rng), rng, experts, workers, 3)
        assert compute(again).tobytes() == whole.tobytes()
