"""The expert FFN over a worker's batch: all groups in one persistent launch, or as many at a time as weights fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colibri.kernels.api import F32, MAX_TOP_K, U32, Array, PackedExpert, UnitBatch
from colibri.kernels.checks.arrays import check_array
from colibri.kernels.checks.units import check_unit_batch
from colibri.kernels.cuda.device import Buffer, Device
from colibri.kernels.cuda.expanding import Dequantiser, Expansion
from colibri.kernels.cuda.plan import DTYPE_CODES, PLAIN_ROWS, fold_order, padded_rows, tile_groups
from colibri.kernels.cuda.products import (
    SWIGLU,
    WEIGHTED,
    check_waits,
    grouped,
    on_tensor_cores,
    plain,
    pointers,
    upload_tiles,
)
from colibri.kernels.cuda.rows import fold
from colibri.kernels.cuda.weights import WeightCache
from colibri.kernels.layout.packing import gate_up_bytes, packed_expert_bytes


def expert_units(
    device: Device,
    weights: WeightCache,
    block: int,
    x: Array,
    experts: Sequence[PackedExpert],
    batch: UnitBatch,
    dequantiser: Dequantiser | None = None,
) -> F32:
    """Computes the batch; see Backend.expert_units.

    dequantiser: turns int4 experts into bf16 on their way to the device; None: the kernel dequantises.
    """
    check_array("x", x, (np.float32, np.uint16), ("rows", "hidden"))
    if not _plainly_right(x, experts, batch):
        check_unit_batch(x, experts, batch)
    hidden = x.shape[1]
    shape = (len(batch.unit_slots), hidden)
    if not experts:
        return np.zeros(shape, dtype=np.float32)
    first = experts[0]
    size = packed_expert_bytes(first.dtype, hidden, first.ffn, first.group)
    for index, expert in enumerate(experts):
        check_array(f"experts[{index}].data", expert.data, np.uint8, (size,))
    expand = None
    if dequantiser is not None and first.dtype == "int4":
        expand = Expansion(dequantiser, first)
        first = PackedExpert("bf16", hidden, first.ffn, first.data)
        size = expand.nbytes
    tensor = on_tensor_cores(device, x, first.dtype)
    rows = padded_rows(x) if tensor else x
    on_device = device.upload(rows)
    out = device.empty(len(batch.entry_row) * hidden * 4)
    starts = np.concatenate([[0], np.cumsum(batch.group_count)]).astype(np.int64)
    runs = weights.runs([size] * len(experts))
    counters: list[Buffer] = []
    loads = weights.stream([[experts[g].data for g in run] for run in runs], expand)
    for run, buffers in zip(runs, loads, strict=True):
        entries = slice(int(starts[run[0]]), int(starts[run[-1] + 1]))
        work = _Run(
            counts=batch.group_count[run[0] : run[-1] + 1],
            x=on_device,
            stride=rows.shape[1],
            x_bf16=x.dtype == np.uint16,
            entry_row=device.upload(batch.entry_row[entries]),
            entry_weight=device.upload(batch.entry_weight[entries]),
            experts=pointers(device, buffers),
            out=_View(out, entries.start * hidden * 4, (entries.stop - entries.start) * hidden * 4),
            expert=first,
        )
        if tensor:
            counters.append(work.on_tensor_cores(device))
        else:
            work.plainly(device)
    order, offsets = fold_order(batch)
    units = fold(device, block, [out], None, order, offsets, hidden)
    result = device.download(units, shape, np.float32)
    for each in counters:
        check_waits(device, each)
    return result


class _View:
    """Part of a buffer, which it keeps alive."""

    def __init__(self, whole: Buffer, start: int, nbytes: int) -> None:
        self._whole = whole
        self.pointer = whole.pointer + start
        self.nbytes = nbytes


class _Run:
    """The groups of one launch."""

    def __init__(
        self,
        *,
        counts: U32,
        x: Buffer,
        stride: int,
        x_bf16: bool,
        entry_row: Buffer,
        entry_weight: Buffer,
        experts: Buffer,
        out: Buffer,
        expert: PackedExpert,
    ) -> None:
        self._counts = counts
        self._x, self._stride, self._x_bf16 = x, stride, x_bf16
        self._entry_row, self._entry_weight = entry_row, entry_weight
        self._experts, self._out, self._expert = experts, out, expert
        self._down = gate_up_bytes(expert.dtype, expert.hidden, expert.ffn, expert.group)[1]

    def on_tensor_cores(self, device: Device) -> Buffer:
        return grouped(
            device,
            self._expert.dtype,
            self._counts,
            self._x,
            stride=self._stride,
            entry_row=self._entry_row,
            entry_weight=self._entry_weight,
            experts=self._experts,
            out=self._out,
            hidden=self._expert.hidden,
            ffn=self._expert.ffn,
            down_offset=self._down,
            group=self._expert.group,
        )

    def plainly(self, device: Device) -> None:
        """Computes gate_up with SwiGLU, then down. h is bf16 only between bf16 weights, else fp32."""
        e = self._expert
        padded = -(-e.ffn // 16) * 16
        h_bf16 = self._x_bf16 and e.dtype == "bf16"
        h = device.empty(int(self._counts.sum()) * padded * (2 if h_bf16 else 4))
        tiles = upload_tiles(device, tile_groups(self._counts, PLAIN_ROWS))
        plain(
            device,
            self._x,
            tiles,
            stride=self._stride,
            x_bf16=self._x_bf16,
            entry_row=self._entry_row,
            entry_weight=None,
            experts=self._experts,
            offset=0,
            out=h,
            out_stride=padded,
            out_bf16=h_bf16,
            k=e.hidden,
            n=2 * padded,
            dtype=e.dtype,
            group=e.group,
            epilogue=SWIGLU,
        )
        plain(
            device,
            h,
            tiles,
            stride=padded,
            x_bf16=h_bf16,
            entry_row=None,
            entry_weight=self._entry_weight,
            experts=self._experts,
            offset=self._down,
            out=self._out,
            out_stride=e.hidden,
            out_bf16=False,
            k=padded,
            n=e.hidden,
            dtype=e.dtype,
            group=e.group,
            epilogue=WEIGHTED,
        )


def _plainly_right(x: Array, experts: Sequence[PackedExpert], b: UnitBatch) -> bool:
    """Checks quickly whether a batch is well formed. If not, check_unit_batch says what is wrong."""
    integers = (b.group_expert, b.group_count, b.entry_row, b.entry_slot, b.entry_unit, b.unit_slots)
    arrays = (*integers, b.entry_weight)
    if any(a.ndim != 1 or not a.flags.c_contiguous for a in arrays):
        return False
    if any(a.dtype != np.uint32 for a in integers) or b.entry_weight.dtype != np.float32:
        return False
    entries, units = len(b.entry_row), len(b.unit_slots)
    if not len(experts) == len(b.group_expert) == len(b.group_count) or not entries or not units:
        return False
    if any(len(a) != entries for a in (b.entry_slot, b.entry_unit, b.entry_weight)):
        return False
    bounds = ((b.entry_row, len(x)), (b.entry_slot, MAX_TOP_K), (b.entry_unit, units))
    if any(int(a.max()) >= limit for a, limit in bounds):
        return False
    if np.any(np.diff(b.group_expert.astype(np.int64)) <= 0) or not b.group_count.all():
        return False
    if int(b.group_count.sum(dtype=np.int64)) != entries or not b.unit_slots.all():
        return False
    order, offsets = fold_order(b)
    if not np.array_equal(np.bincount(b.entry_unit, minlength=units), b.unit_slots):
        return False
    # Folded units: slots 0, 1, 2, ... of one row.
    unit = b.entry_unit[order]
    folded = (b.unit_slots > 1)[unit]
    slot = np.arange(entries) - offsets[unit]
    rows = b.entry_row[order]
    if np.any(folded & ((b.entry_slot[order] != slot) | (rows != rows[offsets[unit]]))):
        return False
    first = experts[0]
    same = (first.dtype, first.ffn, first.group, x.shape[1])
    if any((e.dtype, e.ffn, e.group, e.hidden) != same for e in experts):
        return False
    return first.dtype in (("bf16", "int8", "int4") if x.dtype == np.uint16 else DTYPE_CODES)
