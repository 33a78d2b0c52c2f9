"""Products and experts of int8 and int4 weights: bit for bit what docs/numerics.md says on every instruction path, the
same on any number of threads and in any company, and close to float64 on every backend."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from colibri.kernels.api import Backend, PackedExpert
from colibri.kernels.cpu.backend import CpuBackend

from . import contract
from .conftest import PATHS
from .quantised_support import FORMATS, KINDS, draw, read, read_expert, values
from .support import (
    FP32_BOUND,
    SIZES,
    Array,
    as_float64,
    assert_close,
    assert_same,
    silu,
    stored,
    unit_batch,
)

#: Relative RMS of an expert whose hidden values may be quantised one step apart.
EXPERT_BOUND = 5e-3


@pytest.fixture(scope="module", params=PATHS)
def cpu(request: pytest.FixtureRequest) -> Iterator[Backend]:
    backend = CpuBackend(threads=2, isa=request.param)
    yield backend
    backend.close()


@pytest.fixture(params=FORMATS, ids=lambda f: f"{f[0]}g{f[1]}")
def form(request: pytest.FixtureRequest) -> tuple[str, int]:
    return request.param  # type: ignore[no-any-return]


def inputs(rng: np.random.Generator, kind: str, rows: int, k: int, dtype: str = "fp32") -> Array:
    return stored(draw(rng, kind, rows, k).clip(-3e38, 3e38), dtype)


def expert_of(
    b: Backend, rng: np.random.Generator, hidden: int, ffn: int, form: tuple[str, int], kind: str = "ordinary"
) -> PackedExpert:
    scale = 1.0 if kind == "tiny" else hidden**-0.5
    gate, up = (inputs(rng, kind, ffn, hidden) * np.float32(scale) for _ in range(2))
    return b.quantize_expert(gate, up, inputs(rng, kind, hidden, ffn) * np.float32(scale), *form)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows_in", ["fp32", "bf16"])
def test_linear_is_the_contract(
    cpu: Backend, rng: np.random.Generator, form: tuple[str, int], kind: str, rows_in: str
) -> None:
    for n, k in ((1, 1), (33, 17), (31, 33), (20, 260)):
        packed = cpu.quantize_linear(inputs(rng, kind, n, k), *form)
        matrix = read(packed.data, form[0], n, k, form[1])
        for rows in (1, 2, 7, 12, 15):
            x = inputs(rng, kind, rows, k, rows_in)
            expected = contract.quantised_product(x, *matrix, form[1])
            assert_same(cpu.linear(x, packed), expected, f"rows={rows} n={n} k={k}")


def test_largest_sums_of_a_group_are_exact(cpu: Backend, form: tuple[str, int]) -> None:
    """Every number at an end of its range, all signs alike and all opposed."""
    k = 2 * form[1]
    x = np.full((3, k), 5.0, dtype=np.float32)
    x[1] = -5
    x[2, 1::2] = -5
    weight = np.full((4, k), 3.0, dtype=np.float32)
    weight[1] = -3
    weight[2, ::2] = -3
    weight[3, k // 2 :] = -3
    packed = cpu.quantize_linear(weight, *form)
    matrix = read(packed.data, form[0], 4, k, form[1])
    assert np.abs(matrix[0]).min() >= (127 if form[0] == "int8" else 7)
    assert_same(cpu.linear(x, packed), contract.quantised_product(x, *matrix, form[1]))


@pytest.mark.parametrize("kind", ["ordinary", "wide", "tiny"])
@pytest.mark.parametrize("rows_in", ["fp32", "bf16"])
def test_experts_are_the_contract(
    cpu: Backend, rng: np.random.Generator, form: tuple[str, int], kind: str, rows_in: str
) -> None:
    hidden, ffn, rows = 72, 147, 13
    packed = [expert_of(cpu, rng, hidden, ffn, form, kind) for _ in range(3)]
    x = inputs(rng, "ordinary" if kind == "wide" else kind, rows, hidden, rows_in)
    chosen = np.array([rng.permutation(3)[:2] for _ in range(rows)], dtype=np.uint16)
    weights = rng.random((rows, 2)).astype(np.float32)
    batch, _ = unit_batch(chosen, weights, folded=True)
    got = cpu.expert_units(x, [packed[e] for e in batch.group_expert], batch)
    outs = [contract.quantised_expert(x, *read_expert(e), form[1]) for e in packed]
    slots = [
        contract.mul(weights[:, s, None], np.array([outs[e][r] for r, e in enumerate(chosen[:, s])]))
        for s in (0, 1)
    ]
    assert_same(got, contract.add(slots[0], slots[1]))


@pytest.mark.parametrize("kind", ["ordinary", "wide", "tiny", "saturating"])
def test_paths_threads_and_company_agree(
    cpu_backends: list[Backend], rng: np.random.Generator, form: tuple[str, int], kind: str
) -> None:
    """Rows 1 to 67 of a product and an expert, on every path with 1 and 2 threads, alone and in any company."""
    total, hidden, ffn = 67, 200, 88
    weight = inputs(rng, kind, 70, hidden)
    gate, up, down = (inputs(rng, kind, *s) for s in ((ffn, hidden), (ffn, hidden), (hidden, ffn)))
    x = inputs(rng, kind, total, hidden)
    weights = rng.random((total, 1)).astype(np.float32)
    oracle: list[Array] | None = None
    for b in reversed(cpu_backends):
        linear, expert = b.quantize_linear(weight, *form), b.quantize_expert(gate, up, down, *form)

        def compute(rows: Array, b=b, linear=linear, expert=expert) -> list[Array]:  # type: ignore[no-untyped-def]
            batch, _ = unit_batch(np.zeros((len(rows), 1), dtype=np.uint16), weights[rows], folded=False)
            some = np.ascontiguousarray(x[rows])
            return [b.linear(some, linear), b.expert_units(some, [expert] if len(rows) else [], batch)]

        whole = compute(np.arange(total))
        oracle = oracle or whole
        for got, want in zip(whole, oracle, strict=True):
            assert_same(got, want, f"{b.isa} with {b.threads} threads")
        for count in (0, 1, 2, 6, 7, 8, 9, 12, 13, 15, 16, 17, 31, 33):
            rows = np.sort(rng.permutation(total)[:count])
            for got, want in zip(compute(rows), oracle, strict=True):
                assert_same(got, np.ascontiguousarray(want[rows]), f"{b.isa}, {count} rows")


def test_linear_against_float64(backend: Backend, rng: np.random.Generator, form: tuple[str, int]) -> None:
    """The packed weights' own values times the quantised rows'."""
    for n, k in ((1, 1), (2, 15), (15, 31), (16, 33), (33, 17), (31, 128), (17, 300)):
        packed = backend.quantize_linear(inputs(rng, "ordinary", n, k), *form)
        matrix = values(read(packed.data, form[0], n, k, form[1]), form[1])
        for rows in (0, int(rng.choice(SIZES))):
            x = inputs(rng, "ordinary", rows, k)
            y = backend.linear(x, packed)
            assert y.shape == (rows, n)
            if rows:
                row_numbers = contract.quantised_rows(x, form[1])
                assert_close(y, values(row_numbers, form[1]) @ matrix.T, FP32_BOUND)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [3, 512])
def test_largest_sizes(cpu_backends: list[Backend], rng: np.random.Generator, rows: int) -> None:
    """The fast paths at a large model's widths, against float64 of what was quantised."""
    for dtype, group in (("int8", 64), ("int4", 128)):
        n, k = (300, 14336) if rows == 3 else (257, 2056)
        weight, x = inputs(rng, "ordinary", n, k), inputs(rng, "ordinary", rows, k)
        first: Array | None = None
        for b in cpu_backends:
            if b.isa == "portable" and len(cpu_backends) > 2:
                continue
            packed = b.quantize_linear(weight, dtype, group)
            y = b.linear(x, packed)
            first = y if first is None else first
            assert_same(y, first, f"{b.isa} with {b.threads} threads")
        assert first is not None
        expected = as_float64(x) @ as_float64(weight).T
        assert_close(first, expected, 0.015 if dtype == "int8" else 0.13)


@pytest.mark.parametrize("rows", [0, *SIZES])
def test_experts_against_float64(backend: Backend, rng: np.random.Generator, rows: int) -> None:
    form = FORMATS[int(rng.integers(len(FORMATS)))]
    hidden, ffn = ((17, 33), (64, 48), (130, 100))[int(rng.integers(3))]
    packed = [expert_of(backend, rng, hidden, ffn, form) for _ in range(2)]
    x = inputs(rng, "ordinary", rows, hidden)
    chosen = rng.integers(0, 2, (rows, 1)).astype(np.uint16)
    weights = rng.random((rows, 1)).astype(np.float32)
    batch, units = unit_batch(chosen, weights, folded=False)
    got = backend.expert_units(x, [packed[e] for e in batch.group_expert], batch)
    expected = np.zeros((len(units), hidden))
    for unit, ((row, slot),) in enumerate(units):
        gate, up, down = (values(m, form[1]) for m in read_expert(packed[chosen[row, slot]]))
        of_row = values(contract.quantised_rows(x[row : row + 1], form[1]), form[1])[0]
        middle = (silu(gate @ of_row) * (up @ of_row)).astype(np.float32)
        of_middle = values(contract.quantised_rows(middle[None], form[1]), form[1])[0]
        expected[unit] = float(weights[row, slot]) * (down @ of_middle)
    assert_close(got, expected, EXPERT_BOUND)


def test_bad_rows_stay_alone(backend: Backend, rng: np.random.Generator, form: tuple[str, int]) -> None:
    expert = expert_of(backend, rng, 140, 20, form)
    linear = backend.quantize_linear(inputs(rng, "ordinary", 40, 140), *form)
    x = inputs(rng, "ordinary", 9, 140)
    batch, _ = unit_batch(np.zeros((9, 1), dtype=np.uint16), np.ones((9, 1), dtype=np.float32), folded=False)
    clean = [backend.expert_units(x, [expert], batch), backend.linear(x, linear)]
    x[2, 5], x[4, 139], x[7, 70] = np.nan, np.inf, -np.inf
    for got, want in zip(
        [backend.expert_units(x, [expert], batch), backend.linear(x, linear)], clean, strict=True
    ):
        assert np.isnan(got[[2, 4, 7]]).all()
        good = [0, 1, 3, 5, 6, 8]
        assert_same(np.ascontiguousarray(got[good]), np.ascontiguousarray(want[good]))
