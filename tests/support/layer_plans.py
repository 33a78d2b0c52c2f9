"""Gates at random, and what any plan of them must come to: the workers' answers and the merge in plain words."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, GateResult
from colibri.router_service.plan_types import Dispatch, LayerPlan

HIDDEN = 5


def make_gate(rng: np.random.Generator, rows: int, top_k: int, experts: int, bad: float = 0.0) -> GateResult:
    ids = np.argsort(rng.random((rows, experts)), axis=1)[:, :top_k].astype(np.uint16).reshape(rows, top_k)
    weights = rng.random((rows, top_k), dtype=np.float32)
    ok = rng.random(rows) >= bad
    ids[~ok] = 0
    weights[~ok] = 0
    return GateResult(ids, weights, ok)


def entries_of(dispatch: Dispatch) -> list[tuple[int, int, int, int, float]]:
    """(expert, row of the batch, slot, unit, weight) in the order sent."""
    batch = dispatch.batch
    experts = np.repeat(batch.group_expert, batch.group_count).tolist()
    columns = (
        experts,
        dispatch.rows[batch.entry_row].tolist(),
        batch.entry_slot.tolist(),
        batch.entry_unit.tolist(),
        batch.entry_weight.tolist(),
    )
    return list(zip(*columns, strict=True))


def slot_order_sum(gate: GateResult, expert_out: F32) -> F32:
    """The contract in its own words, one fp32 rounding per product and per sum."""
    y = np.zeros((len(gate.ok), HIDDEN), dtype=np.float32)
    for row in np.flatnonzero(gate.ok).tolist():
        for slot, expert in enumerate(gate.experts[row].tolist()):
            product = gate.weights[row, slot] * expert_out[row, expert]
            y[row] = product if slot == 0 else y[row] + product
    return y


def execute(plan: LayerPlan, expert_out: F32) -> list[F32]:
    """What the workers would answer, entry by entry."""
    parts = []
    for dispatch in plan.dispatches:
        out = np.zeros((len(dispatch.unit_row), HIDDEN), dtype=np.float32)
        products = {}
        for expert, row, slot, unit, weight in entries_of(dispatch):
            products[unit, slot] = np.float32(weight) * expert_out[row, expert]
        for unit in range(len(out)):
            first, count = int(dispatch.unit_first_slot[unit]), int(dispatch.batch.unit_slots[unit])
            for slot in range(first, first + count):
                out[unit] = products[unit, slot] if slot == first else out[unit] + products[unit, slot]
        parts.append(out)
    return parts


def merge(plan: LayerPlan, parts: list[F32], rows: int) -> F32:
    y = np.zeros((rows, HIDDEN), dtype=np.float32)
    for row in range(rows):
        for n, t in enumerate(range(plan.row_offsets[row], plan.row_offsets[row + 1])):
            term = parts[plan.part[t]][plan.index[t]]
            y[row] = term if n == 0 else y[row] + term
    return y
