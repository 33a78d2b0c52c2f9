"""Which rows and units go to which worker in one layer, and how the answers are merged: pure functions.

A unit is what is sent, answered, retried and merged as a whole: the longest prefix 0..j of a row's gate
slots whose experts one worker owns (folded there), or any later slot alone. Since the merge adds units by
(row, first slot), the sum is the slot-order sum of docs/numerics.md whatever the placement.
"""

from __future__ import annotations

from colibri.errors import InvalidInput
from colibri.kernels.api import U32, GateResult
from colibri.router_service.plan_large import plan_large
from colibri.router_service.plan_small import plan_small
from colibri.router_service.plan_types import Dispatch, LayerPlan, OwnerTable

__all__ = ["DIVIDED_ROWS", "SMALL_ENTRIES", "Dispatch", "LayerPlan", "OwnerTable", "plan_layer", "plan_rows"]

#: Up to so many (row, slot) entries plain Python is the faster way (benchmarks/router_overhead.py).
SMALL_ENTRIES = 64
#: From so many rows an expert on, in the mean of a batch, experts are divided within it. With fewer, computing takes as
#: long as reading the weights once, so each divider would take as long as one worker does for all the rows.
DIVIDED_ROWS = 16


def plan_layer(gate: GateResult, owner: U32, workers: int) -> LayerPlan:
    """Plans one layer's batch. owner u32 [experts]: the worker that answers for each expert.

    Rows whose `ok` is false are in no dispatch and have no terms. Workers without rows get no dispatch. Raises
    InvalidInput if shapes disagree, or an expert or an owner is out of range.
    """
    return plan_rows(gate, OwnerTable.of(owner, workers))


def plan_rows(gate: GateResult, table: OwnerTable, batch_number: int = 0) -> LayerPlan:
    """Plans as plan_layer, with the layer's table made beforehand. The router keeps one table per placement.

    batch_number: of this batch. A batch with fewer than DIVIDED_ROWS rows per expert takes a single line of the
        table, so that no two workers read the same expert; divided experts then go to another worker from batch to
        batch.
    """
    experts = gate.experts
    if experts.ndim != 2 or experts.shape[1] == 0 or experts.shape != gate.weights.shape:
        got = f"{list(experts.shape)}, {list(gate.weights.shape)}"
        raise InvalidInput("gate.experts, gate.weights", "[rows, k], k > 0", got)
    if gate.ok.shape != experts.shape[:1]:
        raise InvalidInput("gate.ok", f"[{len(experts)}]", list(gate.ok.shape))
    plan = plan_small if experts.size <= SMALL_ENTRIES else plan_large
    try:
        divides = table.turns > 1 and experts.size >= DIVIDED_ROWS * len(table.owners)
        return plan(gate, table, None if divides else batch_number % table.turns)
    except IndexError:
        raise InvalidInput("gate.experts", f"ids below {len(table.owners)}", experts.max()) from None
