"""Plan a large batch with whole-array operations: time grows far more slowly than in plain Python."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import F32, U32, GateResult, UnitBatch
from colibri.router_service.plan_types import Dispatch, LayerPlan, OwnerTable

Index = NDArray[np.intp]


def plan_large(gate: GateResult, table: OwnerTable, line: int | None) -> LayerPlan:
    """Plans with the same result as plan_small, for any size. Raises IndexError if an expert is out of range.

    line: the table's line for all rows; None: each row takes its own.
    """
    rows, k = gate.experts.shape
    live = np.flatnonzero(gate.ok)
    if len(live) == 0:
        empty = np.zeros(0, dtype=np.uint32)
        return LayerPlan((), empty, empty, np.zeros(rows + 1, dtype=np.uint32))
    whole = len(live) == rows
    experts = gate.experts if whole else gate.experts[live]
    weights = gate.weights if whole else gate.weights[live]
    at = (live % table.turns)[:, np.newaxis] if line is None else line
    worker = table.owner[at, experts].astype(np.intp)

    # Units by (row, first slot). An entry starts one unless it is a later slot of its row's folded prefix.
    joins = worker == worker[:, :1]
    np.logical_and.accumulate(joins, axis=1, out=joins)
    joins[:, 0] = False
    starts = ~joins.ravel()
    unit_of_entry = np.cumsum(starts) - 1
    first_entry = np.flatnonzero(starts)
    unit_worker = worker.ravel()[first_entry]
    unit_live, unit_slot = np.divmod(first_entry, k)
    unit_row = live[unit_live]

    # The same units by worker, and each worker's rows once.
    units = len(first_entry)
    by_worker = np.argsort(unit_worker, kind="stable")
    unit_ends = np.cumsum(np.bincount(unit_worker, minlength=table.workers))
    unit_base = _starts(unit_ends)
    sent_worker = unit_worker[by_worker]
    sent_row = unit_row[by_worker]
    row_number = np.cumsum(_changes(sent_row) | _changes(sent_worker))
    row_ends = np.concatenate(([0], row_number))[unit_ends]
    index = np.empty(units, dtype=np.intp)
    index[by_worker] = np.arange(units) - unit_base[sent_worker]
    local_row = np.empty(units, dtype=np.intp)
    local_row[by_worker] = row_number - 1 - _starts(row_ends)[sent_worker]

    # Entries by (worker, expert, row).
    position = table.position[at, experts].ravel()
    order = np.argsort(position, kind="stable")
    position = position[order]
    unit_of_entry = unit_of_entry[order]
    group_start = np.flatnonzero(_changes(position))
    entry_ends = np.cumsum(np.bincount(worker.ravel(), minlength=table.workers))

    used = np.flatnonzero(np.diff(unit_ends, prepend=0))
    part = np.zeros(table.workers, dtype=np.uint32)
    part[used] = np.arange(len(used))
    row_offsets = np.zeros(rows + 1, dtype=np.uint32)
    np.cumsum(np.bincount(unit_row, minlength=rows), out=row_offsets[1:])
    group_ends = np.searchsorted(group_start, entry_ends)
    ends = np.stack((np.arange(table.workers), entry_ends, group_ends, unit_ends, row_ends), axis=1)[used]
    laid_out = _ByWorker(
        group_expert=table.expert_at[position[group_start]],
        group_count=_u32(np.diff(group_start, append=len(order))),
        entry_row=_u32(local_row[unit_of_entry]),
        entry_slot=_u32(order % k),
        entry_unit=_u32(index[unit_of_entry]),
        entry_weight=weights.ravel()[order],
        unit_slots=_u32(np.diff(first_entry, append=worker.size)[by_worker]),
        rows=_u32(sent_row[np.diff(row_number, prepend=0) != 0]),
        unit_row=_u32(sent_row),
        unit_first_slot=_u32(unit_slot[by_worker]),
    )
    return LayerPlan(laid_out.split(ends.tolist()), part[unit_worker], _u32(index), row_offsets)


def _u32(values: Index) -> U32:
    return values.astype(np.uint32)


def _starts(ends: Index) -> Index:
    """Returns where each part begins, given its cumulative ends [n]."""
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    return starts


def _changes(values: NDArray[np.integer]) -> NDArray[np.bool_]:
    """True where a value differs from the one before. The first is always True."""
    changed = np.empty(len(values), dtype=np.bool_)
    changed[:1] = True
    np.not_equal(values[1:], values[:-1], out=changed[1:])
    return changed


@dataclass(frozen=True, slots=True)
class _ByWorker:
    """The arrays of all dispatches, one worker after another."""

    group_expert: U32
    group_count: U32
    entry_row: U32
    entry_slot: U32
    entry_unit: U32
    entry_weight: F32
    unit_slots: U32
    rows: U32
    unit_row: U32
    unit_first_slot: U32

    def split(self, ends: list[list[int]]) -> tuple[Dispatch, ...]:
        """Cuts the arrays into dispatches.

        ends: per dispatch (worker, end of entries, of groups, of units, of rows).
        """
        dispatches = []
        n0 = g0 = u0 = r0 = 0
        for worker, n, g, u, r in ends:
            batch = UnitBatch(
                self.group_expert[g0:g],
                self.group_count[g0:g],
                self.entry_row[n0:n],
                self.entry_slot[n0:n],
                self.entry_unit[n0:n],
                self.entry_weight[n0:n],
                self.unit_slots[u0:u],
            )
            dispatches.append(
                Dispatch(worker, self.rows[r0:r], batch, self.unit_row[u0:u], self.unit_first_slot[u0:u])
            )
            n0, g0, u0, r0 = n, g, u, r
        return tuple(dispatches)
