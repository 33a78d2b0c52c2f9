"""Cut products into tiles, and say what their launches need: pure functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from colibri.kernels.api import U32, Array, UnitBatch

#: Architecture from which tensor cores multiply bf16 (mma.sync) and copies are asynchronous (cp.async).
TENSOR_ARCHITECTURE = 80
#: Rows of a tile of plain_product, and bytes of its shared memory.
PLAIN_ROWS = 16
PLAIN_SHARED = (32 + PLAIN_ROWS) * 33 * 4

DTYPE_CODES = {"fp32": 0, "fp16": 1, "bf16": 2, "int8": 3, "int4": 4}

# As in source/tensor.cuh: rows of a stage and their pitch in words, bytes of scales.
_FORMATS = {"bf16": (16, 36, 0), "int8": (8, 40, 64), "int4": (4, 40, 64)}
_STAGES, _SEGMENTS, _X_PITCH = 4, 4, 24
_TICKET = 16


def family_of(architecture: int) -> str:
    """Returns 'mma-sm90' if tensor cores multiply (their sums may differ between architectures), else 'simt'."""
    return f"mma-sm{architecture}" if architecture >= TENSOR_ARCHITECTURE else "simt"


@dataclass(frozen=True, slots=True)
class TensorKernel:
    """A kernel of tensor_*.cu.

    height: rows of a tile.
    panels: of a tile.
    threads, shared: of a block; shared memory in bytes.
    resident: blocks per multiprocessor.
    """

    name: str
    height: int
    panels: int
    threads: int
    shared: int
    resident: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of rows over groups of entries.

    tile_group: [tiles], the group of each tile.
    group_first: [groups + 1], the first tile of each group.
    group_offset: [groups + 1], the first entry of each group.
    """

    tile_group: U32
    group_first: U32
    group_offset: U32


def tensor_kernel(dtype: str, most_rows: int) -> TensorKernel:
    """Returns the kernel for weights of a dtype ('bf16', 'int8' or 'int4'). A row has the same bits from each.

    most_rows: rows of the largest group.
    """
    weight_rows, pitch, scales = _FORMATS[dtype]
    panel = weight_rows * pitch * 4 + scales
    for height, resident in ((8, 3), (32, 2)):
        if most_rows <= height:
            stage = panel + height * _X_PITCH * 4
            shared = _TICKET + _SEGMENTS * _STAGES * stage
            return TensorKernel(f"grouped_{dtype}_rows{height}", height, 1, 32 * _SEGMENTS, shared, resident)
    height = 128 if dtype == "bf16" else 64
    shared = _TICKET + _STAGES * (4 * panel + height * _X_PITCH * 4)
    return TensorKernel(f"grouped_{dtype}_wide", height, 4, 256, shared, 1)


def tile_groups(counts: U32, height: int) -> Tiles:
    """Cuts groups into tiles. counts: [groups], entries of each group, which lie one behind the other; each above 0."""
    tiles = -(-counts.astype(np.int64) // height)
    return Tiles(
        tile_group=np.repeat(np.arange(len(counts), dtype=np.uint32), tiles),
        group_first=_starts(tiles),
        group_offset=_starts(counts),
    )


def fold_order(batch: UnitBatch) -> tuple[U32, U32]:
    """Returns the entries by unit, with slots ascending within each, and where each unit begins [units + 1].

    merge_rows folds by them.
    """
    order = np.lexsort((batch.entry_slot, batch.entry_unit)).astype(np.uint32)
    return order, _starts(batch.unit_slots)


def waves(sizes: list[int], budget: int) -> list[list[int]]:
    """Cuts groups, in order, into runs of at most `budget` bytes of weights each. A larger group is a run of
    its own.
    """
    out: list[list[int]] = []
    used = 0
    for group, size in enumerate(sizes):
        if not out or used + size > budget:
            out.append([])
            used = 0
        out[-1].append(group)
        used += size
    return out


def padded_rows(x: Array, multiple: int = 8) -> Array:
    """Pads each row of x [rows, k] with zeros to a multiple of elements. Returns x itself if there is nothing
    to add.
    """
    missing = -x.shape[1] % multiple
    if not missing:
        return x
    return np.ascontiguousarray(np.pad(x, ((0, 0), (0, missing))))


def _starts(counts: Array) -> U32:
    out = np.zeros(len(counts) + 1, dtype=np.uint32)
    np.cumsum(counts, out=out[1:])
    return out
