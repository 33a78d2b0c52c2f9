"""Matrix products of one weight, and the launches that they share with the expert FFN."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, U32, Array, PackedLinear
from colibri.kernels.checks.arrays import check_format, check_rows_for
from colibri.kernels.cuda.device import Buffer, Device, DeviceError
from colibri.kernels.cuda.plan import (
    DTYPE_CODES,
    PLAIN_ROWS,
    PLAIN_SHARED,
    TENSOR_ARCHITECTURE,
    Tiles,
    padded_rows,
    tensor_kernel,
    tile_groups,
)
from colibri.kernels.cuda.rows import check_size
from colibri.kernels.cuda.weights import WeightCache

#: What plain_product does with a finished sum.
STORE, WEIGHTED, SWIGLU = 0, 1, 2


def linear(device: Device, weights: WeightCache, x: Array, weight: PackedLinear) -> F32:
    check_format("weight", weight)
    check_rows_for(x, weight, wide=False)
    check_size("weight", weight)
    shape = (len(x), weight.n)
    if not len(x) or not weight.n:
        return np.zeros(shape, dtype=np.float32)
    out = device.empty(len(x) * weight.n * 4)
    experts = pointers(device, weights.use([weight.data]))
    counts = np.array([len(x)], dtype=np.uint32)
    if on_tensor_cores(device, x, weight.dtype):
        rows = padded_rows(x)
        grouped(
            device,
            weight.dtype,
            counts,
            device.upload(rows),
            stride=rows.shape[1],
            entry_row=None,
            entry_weight=None,
            experts=experts,
            out=out,
            hidden=weight.k,
            columns=weight.n,
            group=weight.group,
        )
    else:
        plain(
            device,
            device.upload(x),
            upload_tiles(device, tile_groups(counts, PLAIN_ROWS)),
            stride=weight.k,
            x_bf16=x.dtype == np.uint16,
            entry_row=None,
            entry_weight=None,
            experts=experts,
            offset=0,
            out=out,
            out_stride=weight.n,
            out_bf16=False,
            k=weight.k,
            n=weight.n,
            dtype=weight.dtype,
            group=weight.group,
            epilogue=STORE,
        )
    return device.download(out, shape, np.float32)


def on_tensor_cores(device: Device, x: Array, dtype: str) -> bool:
    """Whether tensor cores multiply: bf16 rows by weights that bf16 holds exactly, on a card with the instructions.
    Else plain FMA does.
    """
    narrow = x.dtype == np.uint16 and dtype in ("bf16", "int8", "int4")
    return narrow and device.architecture >= TENSOR_ARCHITECTURE


def pointers(device: Device, buffers: list[Buffer]) -> Buffer:
    return device.upload(np.array([each.pointer for each in buffers], dtype=np.uint64))


TileBuffers = tuple[int, Buffer, Buffer, Buffer]


def upload_tiles(device: Device, tiles: Tiles) -> TileBuffers:
    """Returns the number of tiles, then the three arrays of `tiles` on the device."""
    arrays = (tiles.tile_group, tiles.group_first, tiles.group_offset)
    first, second, third = (device.upload(each) for each in arrays)
    return len(tiles.tile_group), first, second, third


def grouped(
    device: Device,
    dtype: str,
    counts: U32,
    x: Buffer,
    *,
    stride: int,
    entry_row: Buffer | None,
    entry_weight: Buffer | None,
    experts: Buffer,
    out: Buffer,
    hidden: int,
    ffn: int = 0,
    columns: int = 0,
    down_offset: int = 0,
    group: int = 0,
) -> Buffer:
    """Starts one persistent launch of tensor.cuh: the FFN of all groups (ffn > 0), or one product [columns, hidden].

    Returns its counters, for check_waits.
    """
    kernel = tensor_kernel(dtype, int(counts.max()))
    tiles, tile_group, group_first, group_offset = upload_tiles(device, tile_groups(counts, kernel.height))
    padded = -(-ffn // 16) * 16
    counters = device.zeros((2 + tiles) * 4)
    h = device.empty(int(counts.sum()) * padded * 2) if ffn else None
    panels = [padded // 16, -(-hidden // 32)] if ffn else [-(-columns // 32)]
    work = tiles * sum(-(-each // kernel.panels) for each in panels)
    device.launch(
        kernel.name,
        min(work, device.processors * kernel.resident),
        kernel.threads,
        kernel.shared,
        x,
        entry_row,
        entry_weight,
        experts,
        tile_group,
        group_first,
        group_offset,
        h,
        out,
        counters,
        np.uint64(down_offset),
        np.uint32(stride),
        np.uint32(tiles),
        np.uint32(hidden),
        np.uint32(ffn),
        np.uint32(columns),
        np.uint32(group or 32),
    )
    return counters


def check_waits(device: Device, counters: Buffer) -> None:
    """Raises DeviceError if a tile of a finished launch gave up waiting."""
    if device.download(counters, (2,), np.uint32)[1]:
        raise DeviceError("expert FFN: a tile of down waited two seconds for its rows of gate_up in vain")


def plain(
    device: Device,
    x: Buffer,
    tiles: TileBuffers,
    *,
    stride: int,
    x_bf16: bool,
    entry_row: Buffer | None,
    entry_weight: Buffer | None,
    experts: Buffer,
    offset: int,
    out: Buffer,
    out_stride: int,
    out_bf16: bool,
    k: int,
    n: int,
    dtype: str,
    group: int,
    epilogue: int,
) -> None:
    """Starts one launch of plain_product."""
    count, tile_group, group_first, group_offset = tiles
    device.launch(
        "plain_product",
        count * -(-n // 32),
        128,
        PLAIN_SHARED,
        x,
        np.uint32(stride),
        np.int32(x_bf16),
        entry_row,
        entry_weight,
        experts,
        np.uint64(offset),
        tile_group,
        group_first,
        group_offset,
        out,
        np.uint32(out_stride),
        np.int32(out_bf16),
        np.uint32(k),
        np.uint32(n),
        np.int32(DTYPE_CODES[dtype]),
        np.uint32(group or 32),
        np.int32(epilogue),
    )
