"""Check a batch of units and the terms of a merge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colibri.kernels.api import F32, MAX_TOP_K, U32, Array, PackedExpert, UnitBatch
from colibri.kernels.checks.arrays import check_array, check_below, check_format


def check_unit_batch(x: Array, experts: Sequence[PackedExpert], batch: UnitBatch) -> None:
    """Raises TypeError or ValueError naming the field of the batch, or the expert, that is wrong."""
    groups, entries = len(batch.group_expert), len(batch.entry_row)
    check_array("batch.group_expert", batch.group_expert, np.uint32, ("groups",))
    check_array("batch.group_count", batch.group_count, np.uint32, (groups,))
    check_array("batch.entry_row", batch.entry_row, np.uint32, ("entries",))
    for name in ("entry_slot", "entry_unit"):
        check_array(f"batch.{name}", getattr(batch, name), np.uint32, (entries,))
    check_array("batch.entry_weight", batch.entry_weight, np.float32, (entries,))
    check_array("batch.unit_slots", batch.unit_slots, np.uint32, ("units",))
    if np.any(batch.group_expert[1:] <= batch.group_expert[:-1]):
        raise ValueError(f"batch.group_expert: expected ascending ids, got {batch.group_expert.tolist()}")
    if np.any(batch.group_count == 0) or int(batch.group_count.sum()) != entries:
        raise ValueError(
            f"batch.group_count: expected counts above 0 that sum to {entries} (entries), "
            f"got {batch.group_count.tolist()}"
        )
    check_below("batch.entry_row", batch.entry_row, len(x), "rows of x")
    check_below("batch.entry_slot", batch.entry_slot, MAX_TOP_K, "slots")
    check_below("batch.entry_unit", batch.entry_unit, len(batch.unit_slots), "units")
    if len(experts) != groups:
        raise ValueError(f"experts: expected one per group ({groups}), got {len(experts)}")
    for index, expert in enumerate(experts):
        check_format(f"experts[{index}]", expert)
        first = experts[0]
        if (expert.ffn, expert.dtype, expert.group) != (first.ffn, first.dtype, first.group):
            raise ValueError(
                f"experts[{index}]: expected the ffn and dtype of experts[0], got ffn {expert.ffn}, {expert.dtype} "
                f"with group {expert.group}"
            )
        if expert.hidden != x.shape[1]:
            raise ValueError(
                f"experts[{index}].hidden: expected {x.shape[1]} (columns of x), got {expert.hidden}"
            )
        if x.dtype == np.uint16 and expert.dtype not in ("bf16", "int8", "int4"):
            raise ValueError(
                f"experts[{index}].dtype: expected bf16, int8 or int4 for bf16 rows, got {expert.dtype}"
            )
    for unit, slots in enumerate(batch.unit_slots):
        members = np.flatnonzero(batch.entry_unit == unit)
        if len(members) != slots or slots == 0:
            raise ValueError(
                f"batch.unit_slots[{unit}]: expected its number of entries ({len(members)}), got {slots}"
            )
        if slots > 1:
            if sorted(batch.entry_slot[members].tolist()) != list(range(slots)):
                got = sorted(batch.entry_slot[members].tolist())
                raise ValueError(
                    f"batch.entry_slot: expected slots 0 .. {slots - 1} in unit {unit}, got {got}"
                )
            if len(set(batch.entry_row[members].tolist())) != 1:
                got = batch.entry_row[members].tolist()
                raise ValueError(f"batch.entry_row: expected one row in unit {unit}, got {got}")


def check_merge(parts: Sequence[F32], part: U32, index: U32, row_offsets: U32) -> None:
    """Raises TypeError or ValueError naming the argument that is wrong."""
    if not parts:
        raise ValueError("parts: expected at least one array, got none")
    check_array("parts[0]", parts[0], np.float32, ("units", "hidden"))
    hidden = parts[0].shape[1]
    for number, array in enumerate(parts):
        check_array(f"parts[{number}]", array, np.float32, ("units", hidden))
    check_array("part", part, np.uint32, ("terms",))
    check_array("index", index, np.uint32, part.shape)
    check_array("row_offsets", row_offsets, np.uint32, ("rows + 1",))
    ends = row_offsets.astype(np.int64)
    if len(ends) == 0 or ends[0] != 0 or ends[-1] != len(part) or np.any(np.diff(ends) < 0):
        raise ValueError(
            f"row_offsets: expected 0 ascending to {len(part)} (terms), got {row_offsets.tolist()}"
        )
    for term, (source, unit) in enumerate(zip(part, index, strict=True)):
        if source >= len(parts):
            raise ValueError(f"part[{term}]: expected 0 .. {len(parts) - 1} (parts), got {source}")
        units = len(parts[source])
        if unit >= units:
            raise ValueError(f"index[{term}]: expected 0 .. {units - 1} (units of part {source}), got {unit}")
