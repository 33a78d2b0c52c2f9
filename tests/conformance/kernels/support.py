"""Fresh random inputs and float64 comparisons for the kernel suites; nothing here calls a backend's code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import ComputeMode, KvView, UnitBatch

Array = NDArray[Any]
F64 = NDArray[np.float64]

#: Around the widths of lanes, panels and tiles.
SIZES = (1, 2, 15, 16, 17, 31, 33)
#: Largest relative RMS error where fp32 is the narrowest rounding, and where bf16 is.
FP32_BOUND = 1e-5
BF16_BOUND = 5e-3


def bound(mode: ComputeMode) -> float:
    return BF16_BOUND if mode is ComputeMode.BF16 else FP32_BOUND


def bf16(x: Array) -> Array:
    """Nearest-even bit patterns of finite values."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def stored(x: Array, dtype: str) -> Array:
    """float64 values as the API carries 'bf16', 'fp16' or 'fp32'."""
    if dtype == "bf16":
        return bf16(x)
    return np.ascontiguousarray(x, dtype={"fp16": np.float16, "fp32": np.float32}[dtype])


def as_float64(x: Array) -> F64:
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.float64)


def row_dtype(mode: ComputeMode) -> str:
    return "bf16" if mode is ComputeMode.BF16 else "fp32"


def assert_close(got: Array, expected: F64, limit: float, terms: F64 | None = None) -> None:
    """Same shape and relative RMS error at most `limit`: of `terms` where these may cancel in what is expected."""
    assert got.shape == expected.shape, f"shape: expected {expected.shape}, got {got.shape}"
    if not expected.size:
        return
    difference = as_float64(got) - expected
    norm = float(np.sqrt(np.mean((expected if terms is None else terms) ** 2)))
    error = float(np.sqrt(np.mean(difference**2))) / (norm or 1.0)
    assert error <= limit, f"relative RMS: at most {limit}, got {error}"


def assert_same(got: Array, expected: Array, what: str = "") -> None:
    """Bit for bit, shape and dtype included."""
    assert got.dtype == expected.dtype, f"{what}: {got.dtype} != {expected.dtype}"
    assert got.shape == expected.shape, f"{what}: {got.shape} != {expected.shape}"
    got, expected = np.ascontiguousarray(got), np.ascontiguousarray(expected)
    if got.tobytes() != expected.tobytes():
        different = np.argwhere(got.view(_bits(got)) != expected.view(_bits(expected)))
        first = tuple(int(i) for i in different[0])
        raise AssertionError(
            f"{what}: {len(different)} of {got.size} differ, first at {first}: {got[first]!r} != {expected[first]!r}"
        )


def softmax(scores: F64) -> F64:
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def silu(x: F64) -> F64:
    return np.asarray(x / (1.0 + np.exp(-x)))


def wide_range(rng: np.random.Generator, shape: tuple[int, ...], exponents: float = 12.0) -> F64:
    """Gaussian values times 2^u, u uniform in +-exponents: cancellation and many magnitudes."""
    return rng.standard_normal(shape) * np.exp2(rng.uniform(-exponents, exponents, shape))


def paged_cache(
    rng: np.random.Generator,
    *,
    lengths: list[int],
    kv_heads: int,
    head_dim: int,
    page: int,
    dtype: str,
    k: list[Array] | None = None,
    v: list[Array] | None = None,
) -> KvView:
    """A cache with room for `lengths` positions per sequence, its pages shuffled, unused table entries -1.

    k, v: per sequence [kv_heads, length, head_dim] already in the cache dtype; without them garbage that no kernel may
    read: NaN. The view has no rows yet (see `rows_of`).
    """
    needed = [-(-length // page) for length in lengths]
    total = sum(needed) + 2
    free = list(rng.permutation(total))
    table = np.full((len(lengths), max(needed, default=0) + 1), -1, dtype=np.int32)
    shape = (total, kv_heads, page, head_dim)
    nan = np.uint16(0x7FC0) if dtype == "bf16" else np.float32(np.nan)
    keys, values = np.full(shape, nan), np.full(shape, nan)
    for sequence, length in enumerate(lengths):
        for i in range(needed[sequence]):
            table[sequence, i] = free.pop()
        if k is None or v is None:
            continue
        for position in range(length):
            at, slot = table[sequence, position // page], position % page
            keys[at, :, slot] = k[sequence][:, position]
            values[at, :, slot] = v[sequence][:, position]
    empty = np.zeros(0, dtype=np.int32)
    return KvView(keys, values, table, empty, empty)


def rows_of(kv: KvView, sequences: Sequence[int] | Array, positions: Sequence[int] | Array) -> KvView:
    """The same cache seen by these rows."""
    return KvView(
        kv.k, kv.v, kv.page_table, np.array(sequences, dtype=np.int32), np.array(positions, dtype=np.int32)
    )


def unit_batch(
    experts: Array, weights: Array, *, folded: bool, only: set[int] | None = None
) -> tuple[UnitBatch, list[list[tuple[int, int]]]]:
    """The work of a worker that holds the experts `only` (None: all) for gate results [rows, k].

    folded: the maximal prefix of a row's slots that lies here is one unit. Also the (row, slot) pairs of each unit.
    """
    units: list[list[tuple[int, int]]] = []
    for row, chosen in enumerate(experts):
        here = [only is None or int(e) in only for e in chosen]
        prefix = here.index(False) if False in here else len(here)
        if folded and prefix:
            units.append([(row, slot) for slot in range(prefix)])
        units += [[(row, slot)] for slot, mine in enumerate(here) if mine and not (folded and slot < prefix)]
    entries = sorted(
        (int(experts[row, slot]), row, slot, unit)
        for unit, members in enumerate(units)
        for row, slot in members
    )
    ids, counts = np.unique(np.array([e[0] for e in entries], dtype=np.uint32), return_counts=True)

    def column(values: list[int]) -> Array:
        return np.array(values, dtype=np.uint32)

    batch = UnitBatch(
        group_expert=ids,
        group_count=counts.astype(np.uint32),
        entry_row=column([e[1] for e in entries]),
        entry_slot=column([e[2] for e in entries]),
        entry_unit=column([e[3] for e in entries]),
        entry_weight=np.array([weights[e[1], e[2]] for e in entries], dtype=np.float32),
        unit_slots=column([len(u) for u in units]),
    )
    return batch, units


def _bits(x: Array) -> Any:
    return {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[x.dtype.itemsize]
