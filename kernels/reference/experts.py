"""The expert FFN over a worker's batch, weighted and folded into units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colibri.kernels.api import F32, MAX_TOP_K, Array, PackedExpert, UnitBatch
from colibri.kernels.reference import quantised
from colibri.kernels.reference.checks import check_array, check_below, check_format
from colibri.kernels.reference.floats import F64, silu_mul, to_bf16, to_f32, widen
from colibri.kernels.reference.linear import product
from colibri.kernels.reference.packing import unpack_expert


def expert_units(x: Array, experts: Sequence[PackedExpert], batch: UnitBatch) -> F32:
    check_array("x", x, (np.float32, np.uint16), ("rows", "hidden"))
    check_unit_batch(x, experts, batch)
    units = np.zeros((len(batch.unit_slots), x.shape[1]), dtype=np.float32)
    weighted = np.zeros((len(batch.entry_row), x.shape[1]), dtype=np.float32)
    start = 0
    for expert, count in zip(experts, batch.group_count, strict=True):
        entries = slice(start, start + int(count))
        rows = x[batch.entry_row[entries]]
        if quantised.is_quantised(expert):
            out = quantised_ffn(rows, expert)
        else:
            out = expert_ffn(widen(rows), expert, bf16=x.dtype == np.uint16)
        with np.errstate(over="ignore", invalid="ignore"):
            weighted[entries] = to_f32(to_f32(batch.entry_weight[entries])[:, None] * to_f32(out))
        start = entries.stop
    started = np.zeros(len(units), dtype=bool)
    for entry in np.argsort(batch.entry_slot, kind="stable"):
        unit = batch.entry_unit[entry]
        with np.errstate(over="ignore", invalid="ignore"):
            units[unit] = to_f32(units[unit] + weighted[entry]) if started[unit] else weighted[entry]
        started[unit] = True
    return units


def expert_ffn(rows: F64, expert: PackedExpert, *, bf16: bool) -> F64:
    """down(silu(gate(x)) * up(x)) of rows [n, hidden]; the middle rounded to fp32, or to bf16."""
    gate, up, down = (widen(matrix) for matrix in unpack_expert(expert))
    middle = silu_mul(widen(to_f32(product(rows, gate))), widen(to_f32(product(rows, up))))
    return product(widen(to_bf16(middle) if bf16 else to_f32(middle)), down)


def quantised_ffn(rows: Array, expert: PackedExpert) -> F64:
    """The same on int8 or int4 weights: rows are quantised, and the middle as fp32, whatever the rows' dtype."""
    gate, up, down = quantised.unpack_expert(expert)
    hidden = (to_f32(quantised.product(rows, matrix, expert.group)) for matrix in (gate, up))
    middle = silu_mul(*(widen(values) for values in hidden))
    return quantised.product(to_f32(middle), down, expert.group)


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
