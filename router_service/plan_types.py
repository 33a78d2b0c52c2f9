"""The shape of a layer's plan: what each worker gets, and how its answers are merged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.errors import InvalidInput
from colibri.kernels.api import U32, UnitBatch

#: In place of a worker: none that could answer is alive.
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The message of one worker: each row once, and the units it answers with.

    worker: index into the placement's workers; rows u32 [R]: rows of the batch, ascending; batch: entries
    sorted by expert, then row, their entry_row counting within `rows`; unit_row u32 [U]: row of the batch
    of each unit; unit_first_slot u32 [U]. Units are ordered by (row, first slot).
    """

    worker: int
    rows: U32
    batch: UnitBatch
    unit_row: U32
    unit_first_slot: U32


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """Dispatches by ascending worker (but see replan.splice), and the arguments of Backend.merge for their results in
    the same order.

    part, index u32 [T]: dispatch and unit of each term, by (row, first slot); row_offsets u32 [rows + 1]:
    terms of each row; a row that is not ok has none.
    """

    dispatches: tuple[Dispatch, ...]
    part: U32
    index: U32
    row_offsets: U32


@dataclass(frozen=True, slots=True)
class OwnerTable:
    """What planning needs of one layer's placement, computed once per placement.

    owner intp [experts]: worker of each expert; position u16 or u32 [experts]: rank of the expert in the
    order (worker, expert); expert_at u32 [experts]: its inverse; owners: `owner` as Python ints.
    """

    workers: int
    owner: NDArray[np.intp]
    position: NDArray[np.uint16 | np.uint32]
    expert_at: U32
    owners: tuple[int, ...]

    @staticmethod
    def of(owner: U32, workers: int) -> OwnerTable:
        """owner u32 [experts], each below `workers`. Raises InvalidInput."""
        if owner.ndim != 1 or owner.dtype.kind not in "ui":
            raise InvalidInput("owner", "integers [experts]", f"{owner.dtype} {list(owner.shape)}")
        if len(owner) and (int(owner.min()) < 0 or int(owner.max()) >= workers):
            raise InvalidInput("owner", f"workers below {workers}", f"{owner.min()}..{owner.max()}")
        order = np.argsort(owner, kind="stable")
        dtype: type[np.uint16 | np.uint32] = np.uint16 if len(owner) <= 1 << 16 else np.uint32
        position = np.empty(len(owner), dtype=dtype)
        position[order] = np.arange(len(owner), dtype=dtype)
        owners = tuple(owner.tolist())
        return OwnerTable(workers, owner.astype(np.intp), position, order.astype(np.uint32), owners)
