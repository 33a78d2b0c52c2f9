"""How launches are cut: tiles, waves, the order of folding."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.kernels.api import UnitBatch
from colibri.kernels.cuda.plan import fold_order, padded_rows, tensor_kernel, tile_groups, waves


def test_tiles_cover_every_entry_once() -> None:
    rng = np.random.default_rng()
    for height in (8, 16, 128):
        counts = rng.integers(1, 300, 9).astype(np.uint32)
        tiles = tile_groups(counts, height)
        covered: list[int] = []
        for tile, group in enumerate(tiles.tile_group):
            first = tiles.group_offset[group] + (tile - tiles.group_first[group]) * height
            covered += range(first, min(first + height, int(tiles.group_offset[group + 1])))
        assert covered == list(range(int(counts.sum())))
        assert tiles.group_first[-1] == len(tiles.tile_group)


def test_the_kernel_is_chosen_by_the_largest_group() -> None:
    chosen = {rows: tensor_kernel("int8", rows).name for rows in (1, 8, 9, 32, 33, 5000)}
    assert chosen == {
        1: "grouped_int8_rows8",
        8: "grouped_int8_rows8",
        9: "grouped_int8_rows32",
        32: "grouped_int8_rows32",
        33: "grouped_int8_wide",
        5000: "grouped_int8_wide",
    }


@pytest.mark.parametrize(
    ("sizes", "budget", "expected"),
    [
        ([5, 5, 5], 15, [[0, 1, 2]]),
        ([5, 5, 5], 10, [[0, 1], [2]]),
        ([5, 20, 5], 10, [[0], [1], [2]]),
        ([], 10, []),
    ],
)
def test_waves(sizes: list[int], budget: int, expected: list[list[int]]) -> None:
    assert waves(sizes, budget) == expected


def test_entries_are_folded_by_slot() -> None:
    def u32(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.uint32)

    batch = UnitBatch(
        group_expert=u32(0, 1),
        group_count=u32(2, 2),
        entry_row=u32(0, 1, 0, 1),
        entry_slot=u32(1, 0, 0, 1),
        entry_unit=u32(0, 1, 0, 1),
        entry_weight=np.ones(4, dtype=np.float32),
        unit_slots=u32(2, 2),
    )
    order, offsets = fold_order(batch)
    assert order.tolist() == [2, 0, 1, 3]
    assert offsets.tolist() == [0, 2, 4]


def test_rows_are_padded_with_zeros() -> None:
    x = np.ones((3, 5), dtype=np.uint16)
    padded = padded_rows(x)
    assert padded.shape == (3, 8)
    assert not padded[:, 5:].any()
    assert padded_rows(padded) is padded
