"""The data of a layer's plan: what each worker gets, and how its answers are merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.errors import InvalidInput
from colibri.kernels.api import U32, UnitBatch
from colibri.row_division import PARTS, Division

#: In place of a worker: none that could answer is alive.
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What one worker gets: each of its rows once, and the units that it answers with, ordered by (row, first slot).

    worker: index into the placement's workers.
    rows: u32 [R], rows of the layer's batch, ascending.
    batch: entries sorted by expert, then row; entry_row is an index into `rows`.
    unit_row: u32 [U], row of the layer's batch of each unit.
    unit_first_slot: u32 [U].
    """

    worker: int
    rows: U32
    batch: UnitBatch
    unit_row: U32
    unit_first_slot: U32


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Dispatches by ascending worker (but see replan.splice), and Backend.merge's arguments for their results.

    part, index: u32 [T], dispatch of each term and unit within it, by (row, first slot).
    row_offsets: u32 [rows + 1], where each row's terms begin. A row that is not ok has none.
    """

    dispatches: tuple[Dispatch, ...]
    part: U32
    index: U32
    row_offsets: U32


_BITS = PARTS.bit_length() - 1
#: Rows of a batch in turn are given to parts 0, 512, 256, 768, .. of their experts: any first few of them are spread as
#: evenly as so few can be, and so are all (van der Corput's order, https://en.wikipedia.org/wiki/Van_der_Corput_sequence).
_ORDER = np.array([int(f"{row:0{_BITS}b}"[::-1], 2) for row in range(PARTS)])


@dataclass(frozen=True, slots=True)
class OwnerTable:
    """Which worker answers for each expert of one layer, in the form that planning needs. Made once per placement.

    turns: number of lines: PARTS if an expert is divided, else 1. Row r takes line r % turns, or all rows take one
        line.
    owner: u16 or u32 [turns, experts], worker of each expert.
    position: u16 or u32 [turns, experts], rank of (worker, expert) among the pairs that occur.
    expert_at: u32 [ranks], expert of each rank.
    owners: the first line as Python ints; NOBODY for a divided expert.
    divided: expert -> its worker in each line.
    """

    workers: int
    turns: int
    owner: NDArray[np.uint16 | np.uint32]
    position: NDArray[np.uint16 | np.uint32]
    expert_at: U32
    owners: tuple[int, ...]
    divided: Mapping[int, tuple[int, ...]]

    @staticmethod
    def of(owner: U32, workers: int) -> OwnerTable:
        """Makes a table without divided experts. owner: u32 [experts], each below `workers`. Raises InvalidInput."""
        if owner.ndim != 1 or owner.dtype.kind not in "ui":
            raise InvalidInput("owner", "integers [experts]", f"{owner.dtype} {list(owner.shape)}")
        if len(owner) and (int(owner.min()) < 0 or int(owner.max()) >= workers):
            raise InvalidInput("owner", f"workers below {workers}", f"{owner.min()}..{owner.max()}")
        return OwnerTable._of_lines(owner.astype(np.intp)[np.newaxis], {}, workers)

    @staticmethod
    def of_division(division: Division, workers: int) -> OwnerTable:
        """Makes a table from the workers that answer for each expert, with their parts (colibri.row_division)."""
        first = np.array([names[0][0] for names in division], np.intp)
        divided = {}
        for expert, names in enumerate(division):
            if len(names) > 1:
                line = np.repeat([worker for worker, _ in names], [parts for _, parts in names])
                divided[expert] = tuple(line[_ORDER].tolist())
        lines = np.repeat(first[np.newaxis], PARTS if divided else 1, axis=0)
        for expert, column in divided.items():
            lines[:, expert] = column
        return OwnerTable._of_lines(lines, divided, workers)

    @staticmethod
    def _of_lines(
        lines: NDArray[np.intp], divided: Mapping[int, tuple[int, ...]], workers: int
    ) -> OwnerTable:
        experts = lines.shape[1]
        number = lines * experts + np.arange(experts)
        occurs = np.zeros(workers * experts, np.bool_)
        occurs[number] = True
        ranks = np.flatnonzero(occurs)
        owners = lines[0].tolist()
        for expert in divided:
            owners[expert] = NOBODY
        return OwnerTable(
            workers,
            len(lines),
            _narrow(lines, workers),
            _narrow((np.cumsum(occurs) - 1)[number], len(ranks)),
            (ranks % max(experts, 1)).astype(np.uint32),
            tuple(owners),
            divided,
        )


def _narrow(values: NDArray[np.intp], below: int) -> NDArray[np.uint16 | np.uint32]:
    return values.astype(np.uint16 if below <= 1 << 16 else np.uint32)
