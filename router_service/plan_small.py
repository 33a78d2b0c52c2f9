"""Plan a small batch in plain Python, which is then cheaper than NumPy's calls."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import GateResult, UnitBatch
from colibri.router_service.plan_types import Dispatch, LayerPlan, OwnerTable


class Work:
    """What one worker gets, collected by row and slot. An entry is (expert, local row, slot, local unit, weight)."""

    __slots__ = ("entries", "rows", "unit_first_slot", "unit_row", "unit_slots")

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int, int, float]] = []
        self.rows: list[int] = []
        self.unit_row: list[int] = []
        self.unit_first_slot: list[int] = []
        self.unit_slots: list[int] = []

    def begin_unit(self, row: int, slot: int) -> None:
        if not self.rows or self.rows[-1] != row:
            self.rows.append(row)
        self.unit_row.append(row)
        self.unit_first_slot.append(slot)
        self.unit_slots.append(1)

    def extend_unit(self) -> None:
        """Extends the last unit by the next slot, whose entry is added next."""
        self.unit_slots[-1] += 1

    def add_entry(self, expert: int, slot: int, weight: float) -> None:
        """Adds an entry to the last unit."""
        self.entries.append((expert, len(self.rows) - 1, slot, len(self.unit_row) - 1, weight))


def plan_small(gate: GateResult, table: OwnerTable, line: int | None) -> LayerPlan:
    """Plans with the same result as plan_large, for any size. Raises IndexError if an expert is out of range.

    line: the table's line for all rows; None: each row takes its own.
    """
    owners, divided, turns = table.owners, table.divided, table.turns
    ok: list[bool] = gate.ok.tolist()
    weights: list[list[float]] = gate.weights.tolist()
    work: dict[int, Work] = {}
    terms: list[tuple[int, int]] = []
    row_offsets = [0]
    for row, ids in enumerate(gate.experts.tolist()):
        if ok[row]:
            at = row % turns if line is None else line
            prefix = owners[ids[0]]
            if prefix < 0:
                prefix = divided[ids[0]][at]
            for slot, expert in enumerate(ids):
                worker = owners[expert]
                if worker < 0:
                    worker = divided[expert][at]
                mine = work.get(worker)
                if mine is None:
                    mine = work[worker] = Work()
                # Work's own steps, in line: the calls would cost as much as all else here.
                if worker == prefix and slot > 0:
                    mine.unit_slots[-1] += 1
                else:
                    if slot > 0:
                        prefix = -1
                    if not mine.rows or mine.rows[-1] != row:
                        mine.rows.append(row)
                    terms.append((worker, len(mine.unit_row)))
                    mine.unit_row.append(row)
                    mine.unit_first_slot.append(slot)
                    mine.unit_slots.append(1)
                local_row, unit = len(mine.rows) - 1, len(mine.unit_row) - 1
                mine.entries.append((expert, local_row, slot, unit, weights[row][slot]))
        row_offsets.append(len(terms))
    order = sorted(work)
    t = len(terms)
    flat = np.array(
        [*(order.index(worker) for worker, _ in terms), *(index for _, index in terms), *row_offsets],
        dtype=np.uint32,
    )
    dispatches = tuple([make_dispatch(worker, work[worker]) for worker in order])
    return LayerPlan(dispatches, flat[:t], flat[t : 2 * t], flat[2 * t :])


def make_dispatch(worker: int, work: Work) -> Dispatch:
    """Makes one worker's dispatch from what was collected for it."""
    work.entries.sort()
    groups: dict[int, int] = {}
    for entry in work.entries:
        groups[entry[0]] = groups.get(entry[0], 0) + 1
    experts, rows, slots, units, weights = zip(*work.entries, strict=True)
    # One array for all lists, then slices: creating an array costs several times what slicing one does.
    flat = np.array(
        [
            *groups,
            *groups.values(),
            *rows,
            *slots,
            *units,
            *work.unit_slots,
            *work.rows,
            *work.unit_row,
            *work.unit_first_slot,
        ],
        dtype=np.uint32,
    )
    n, u = len(experts), len(work.unit_row)
    a = len(groups)
    b = 2 * a
    c = b + n
    d = c + n
    e = d + n
    f = e + u
    g = f + len(work.rows)
    weight = np.array(weights, dtype=np.float32)
    batch = UnitBatch(flat[:a], flat[a:b], flat[b:c], flat[c:d], flat[d:e], weight, flat[e:f])
    return Dispatch(worker, flat[f:g], batch, flat[g : g + u], flat[g + u :])
