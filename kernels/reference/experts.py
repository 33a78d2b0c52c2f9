"""The expert FFN over a worker's batch, weighted and folded into units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colibri.kernels.api import F32, Array, PackedExpert, UnitBatch
from colibri.kernels.arithmetic.floats import F64, silu_mul, to_bf16, to_f32, widen
from colibri.kernels.checks.arrays import check_array
from colibri.kernels.checks.units import check_unit_batch
from colibri.kernels.layout.packing import unpack_expert
from colibri.kernels.reference import quantised
from colibri.kernels.reference.linear import product


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
