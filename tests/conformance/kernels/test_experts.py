"""The expert FFN over units, folded and not, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.kernels.api import Backend, ComputeMode

from .support import (
    SIZES,
    Array,
    as_float64,
    assert_close,
    assert_same,
    bf16,
    bound,
    row_dtype,
    silu,
    stored,
    unit_batch,
)

Matrices = tuple[Array, Array, Array]


def matrices(rng: np.random.Generator, hidden: int, ffn: int, dtype: str) -> Matrices:
    gate, up = (stored(rng.standard_normal((ffn, hidden)) / np.sqrt(hidden), dtype) for _ in range(2))
    return gate, up, stored(rng.standard_normal((hidden, ffn)) / np.sqrt(ffn), dtype)


def ffn_float64(row: Array, expert: Matrices, mode: ComputeMode) -> Array:
    """Apply an expert to a row, all in float64."""
    gate, up, down = expert
    middle = silu(gate @ row) * (up @ row)
    return down @ (as_float64(bf16(middle)) if mode is ComputeMode.BF16 else middle)


def check(
    backend: Backend,
    rng: np.random.Generator,
    mode: ComputeMode,
    *,
    rows: int,
    hidden: int,
    ffn: int,
    experts: int,
    k: int,
    folded: bool,
    weights_in: str | None = None,
    only: set[int] | None = None,
) -> None:
    kept = [matrices(rng, hidden, ffn, weights_in or row_dtype(mode)) for _ in range(experts)]
    packed = [backend.pack_expert(*m, mode) for m in kept]
    x = stored(rng.standard_normal((rows, hidden)), row_dtype(mode))
    chosen = np.array([rng.permutation(experts)[:k] for _ in range(rows)], dtype=np.uint16).reshape(rows, k)
    weights = rng.random((rows, k)).astype(np.float32)
    batch, units = unit_batch(chosen, weights, folded=folded, only=only)
    got = backend.expert_units(x, [packed[e] for e in batch.group_expert], batch)
    assert got.dtype == np.float32
    exact = [(as_float64(gate), as_float64(up), as_float64(down)) for gate, up, down in kept]
    expected, terms = np.zeros((len(units), hidden)), np.zeros((len(units), hidden))
    for unit, members in enumerate(units):
        for row, slot in members:
            out = ffn_float64(as_float64(x[row]), exact[chosen[row, slot]], mode)
            expected[unit] += float(weights[row, slot]) * out
            terms[unit] += np.abs(float(weights[row, slot]) * out)
    assert_close(got, expected, bound(mode), terms)


@pytest.mark.parametrize("folded", [True, False])
def test_expert_units(backend: Backend, rng: np.random.Generator, mode: ComputeMode, folded: bool) -> None:
    for hidden, ffn in (
        (1, 1),
        (2, 15),
        (15, 2),
        (16, 17),
        (17, 16),
        (31, 33),
        (33, 31),
        (64, 48),
        (130, 100),
    ):
        rows, experts = int(rng.choice(SIZES)), int(rng.integers(1, 6))
        k = int(rng.integers(1, experts + 1))
        check(backend, rng, mode, rows=rows, hidden=hidden, ffn=ffn, experts=experts, k=k, folded=folded)


@pytest.mark.parametrize("rows", [0, *SIZES, 160])
def test_rows_per_expert(backend: Backend, rng: np.random.Generator, mode: ComputeMode, rows: int) -> None:
    check(backend, rng, mode, rows=rows, hidden=40, ffn=24, experts=4, k=2, folded=True, only={0, 2, 3})
    check(backend, rng, mode, rows=rows, hidden=40, ffn=24, experts=1, k=1, folded=False)


def test_largest_top_k(backend: Backend, rng: np.random.Generator, mode: ComputeMode) -> None:
    check(backend, rng, mode, rows=5, hidden=32, ffn=16, experts=20, k=16, folded=True)


@pytest.mark.slow
def test_a_wide_expert(backend: Backend, rng: np.random.Generator, mode: ComputeMode) -> None:
    """More than one K block in both products."""
    check(backend, rng, mode, rows=3, hidden=2304, ffn=4400, experts=1, k=1, folded=True)


@pytest.mark.parametrize("weights_in", ["fp16", "bf16"])
def test_fp32_rows_with_narrow_weights(backend: Backend, rng: np.random.Generator, weights_in: str) -> None:
    check(
        backend,
        rng,
        ComputeMode.FP32,
        rows=17,
        hidden=33,
        ffn=20,
        experts=3,
        k=2,
        folded=True,
        weights_in=weights_in,
    )


def test_a_folded_unit_is_the_sum_of_its_slots(
    backend: Backend, rng: np.random.Generator, mode: ComputeMode
) -> None:
    """Exactly: ((p_0 + p_1) + p_2) in fp32, whoever folds."""
    packed = [backend.pack_expert(*matrices(rng, 48, 32, row_dtype(mode)), mode) for _ in range(5)]
    x = stored(rng.standard_normal((20, 48)), row_dtype(mode))
    chosen = np.array([rng.permutation(5)[:3] for _ in range(20)], dtype=np.uint16)
    weights = rng.random((20, 3)).astype(np.float32)
    folded, _ = unit_batch(chosen, weights, folded=True)
    single, units = unit_batch(chosen, weights, folded=False)
    whole = backend.expert_units(x, packed, folded)
    slots = backend.expert_units(x, packed, single)
    index = {members[0]: unit for unit, members in enumerate(units)}
    expected = np.array([(slots[index[r, 0]] + slots[index[r, 1]]) + slots[index[r, 2]] for r in range(20)])
    assert_same(whole, expected)


def test_bad_rows_stay_alone(backend: Backend, rng: np.random.Generator, mode: ComputeMode) -> None:
    packed = backend.pack_expert(*matrices(rng, 33, 17, row_dtype(mode)), mode)
    x = stored(rng.standard_normal((5, 33)), row_dtype(mode))
    batch, _ = unit_batch(np.zeros((5, 1), dtype=np.uint16), np.ones((5, 1), dtype=np.float32), folded=False)
    clean = backend.expert_units(x, [packed], batch)
    x[2, 5] = np.uint16(0x7FC0) if mode is ComputeMode.BF16 else np.nan
    got = backend.expert_units(x, [packed], batch)
    assert np.isnan(got[2]).all()
    assert_same(got[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
