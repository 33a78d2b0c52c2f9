"""Operations on rows alone: merge, residual addition, embedding, RMSNorm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colibri.kernels.api import F32, U32, Array, ComputeMode, PackedLinear
from colibri.kernels.checks.arrays import check_array, check_below, check_format, check_mode
from colibri.kernels.checks.units import check_merge
from colibri.kernels.cuda.device import Buffer, Device
from colibri.kernels.cuda.plan import DTYPE_CODES
from colibri.kernels.cuda.weights import WeightCache
from colibri.kernels.layout.packing import packed_linear_bytes


def blocks(items: int, threads: int) -> int:
    return -(-items // threads)


def check_size(name: str, weight: PackedLinear) -> None:
    """Raises ValueError if `data` does not have the layout's size."""
    expected = packed_linear_bytes(weight.dtype, weight.n, weight.k, weight.group)
    check_array(f"{name}.data", weight.data, np.uint8, (expected,))


def merge(device: Device, block: int, parts: Sequence[F32], part: U32, index: U32, row_offsets: U32) -> F32:
    check_merge(parts, part, index, row_offsets)
    count, hidden = len(row_offsets) - 1, parts[0].shape[1]
    sources = [device.upload(each) for each in parts]
    merged = fold(device, block, sources, device.upload(part), index, row_offsets, hidden)
    return device.download(merged, (count, hidden), np.float32)


def fold(
    device: Device,
    block: int,
    parts: Sequence[Buffer],
    part: Buffer | None,
    index: U32,
    row_offsets: U32,
    hidden: int,
) -> Buffer:
    """Runs merge_rows over buffers. Returns fp32 [len(row_offsets) - 1, hidden].

    part: None for a single part.
    """
    count = len(row_offsets) - 1
    merged = device.empty(count * hidden * 4)
    if count * hidden:
        device.launch(
            "merge_rows",
            blocks(count * hidden, block),
            block,
            0,
            device.upload(np.array([each.pointer for each in parts], dtype=np.uint64)),
            part,
            device.upload(index),
            device.upload(row_offsets),
            merged,
            np.uint32(count),
            np.uint32(hidden),
        )
    return merged


def add_inplace(device: Device, block: int, x: F32, y: F32) -> None:
    check_array("x", x, np.float32, ("rows", "hidden"))
    check_array("y", y, np.float32, x.shape)
    if not x.size:
        return
    total = device.upload(x)
    device.launch("add_rows", blocks(x.size, block), block, 0, total, device.upload(y), np.uint64(x.size))
    x[:] = device.download(total, x.shape, np.float32)


def embed(device: Device, weights: WeightCache, block: int, table: PackedLinear, ids: U32) -> F32:
    check_format("table", table)
    check_array("ids", ids, np.uint32, ("rows",))
    check_below("ids", ids, table.n, "vocabulary")
    check_size("table", table)
    shape = (len(ids), table.k)
    out = device.empty(len(ids) * table.k * 4)
    if len(ids):
        device.launch(
            "embed_rows",
            blocks(len(ids) * table.k, block),
            block,
            0,
            weights.use([table.data])[0],
            device.upload(ids),
            out,
            np.uint32(len(ids)),
            np.uint32(table.k),
            np.int32(DTYPE_CODES[table.dtype]),
            np.uint32(table.group or 32),
        )
    return device.download(out, shape, np.float32)


def rms_norm(device: Device, block: int, x: F32, weight: F32, eps: float, mode: ComputeMode) -> Array:
    check_mode(mode)
    check_array("x", x, np.float32, ("rows", "hidden"))
    check_array("weight", weight, np.float32, (x.shape[1],))
    if not (np.isfinite(eps) and eps >= 0):
        raise ValueError(f"eps: expected a finite number >= 0, got {eps!r}")
    bf16 = mode is ComputeMode.BF16
    dtype = np.dtype(np.uint16 if bf16 else np.float32)
    out = device.empty(x.size * dtype.itemsize)
    if x.size:
        device.launch(
            "rms_norm_rows",
            blocks(len(x) * 16, block),
            block,
            0,
            device.upload(x),
            device.upload(weight),
            out,
            np.uint32(len(x)),
            np.uint32(x.shape[1]),
            np.float32(eps),
            np.int32(bf16),
        )
    return device.download(out, x.shape, dtype)
