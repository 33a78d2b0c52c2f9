"""expert_units: one worker's batch gives the same bits on every path, alone or in a crowd, folded as by hand; and bad
batches are refused by name before anything is computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from colibri.kernels.api import ComputeMode, PackedExpert, UnitBatch
from colibri.kernels.cpu.backend import CpuBackend

from . import exact
from .data import KINDS, PAIRINGS, Array, assert_same_bits, relative_rms, stored, values, widened

Weights = tuple[Array, Array, Array]


def make_experts(
    rng: np.random.Generator, count: int, hidden: int, ffn: int, dtype: str, kind: str
) -> list[Weights]:
    def one(shape: tuple[int, int]) -> Array:
        scale = np.float32(1.0 if kind == "tiny" else shape[1] ** -0.5)
        return stored(values(rng, shape, kind) * scale, dtype)

    return [(one((ffn, hidden)), one((ffn, hidden)), one((hidden, ffn))) for _ in range(count)]


def pack(backend: CpuBackend, experts: list[Weights]) -> list[PackedExpert]:
    return [backend.pack_expert(*e, ComputeMode.FP32) for e in experts]


Entry = tuple[int, int, int, int, float]  # group, row, slot, unit, weight


def batch_of(entries: list[Entry], unit_slots: list[int], groups: int) -> UnitBatch:
    entries = sorted(entries, key=lambda e: e[:2])
    columns = list(zip(*entries, strict=True)) if entries else [(), (), (), (), ()]
    used = sorted(set(columns[0]))
    return UnitBatch(
        group_expert=np.array([3 * g + 1 for g in used], np.uint32),
        group_count=np.array([columns[0].count(g) for g in used], np.uint32),
        entry_row=np.array(columns[1], np.uint32),
        entry_slot=np.array(columns[2], np.uint32),
        entry_unit=np.array(columns[3], np.uint32),
        entry_weight=np.array(columns[4], np.float32),
        unit_slots=np.array(unit_slots, np.uint32),
    )


def random_entries(
    rng: np.random.Generator, rows: int, groups: int, top_k: int
) -> tuple[list[Entry], list[int]]:
    """Rows of `top_k` distinct experts; a random prefix is folded, the rest are units of their own; unit ids
    are shuffled."""
    units: list[list[tuple[int, int, int]]] = []
    for row in range(rows):
        chosen = [int(e) for e in rng.permutation(groups)[:top_k]]
        prefix = int(rng.integers(top_k + 1))
        slots = [(chosen[s], row, s) for s in range(top_k)]
        units += [slots[:prefix]] if prefix else []
        units += [[slot] for slot in slots[prefix:]]
    order = rng.permutation(len(units))
    entries: list[Entry] = []
    sizes = [0] * len(units)
    for unit, members in zip(order, units, strict=True):
        sizes[int(unit)] = len(members)
        entries += [(*m, int(unit), float(np.float32(rng.random()))) for m in members]
    return entries, sizes


def select(experts: list[PackedExpert], batch: UnitBatch) -> list[PackedExpert]:
    return [experts[(int(g) - 1) // 3] for g in batch.group_expert]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("weights", "rows_in"), PAIRINGS)
@pytest.mark.parametrize("rows", [1, 2, 15, 33])
def test_paths_threads_and_company_agree(
    paths: list[CpuBackend], rng: np.random.Generator, weights: str, rows_in: str, kind: str, rows: int
) -> None:
    hidden, ffn = ((17, 33), (64, 48), (31, 16), (40, 90))[int(rng.integers(4))]
    experts = make_experts(rng, 4, hidden, ffn, weights, kind)
    x = stored(values(rng, (rows, hidden), kind), rows_in)
    entries, sizes = random_entries(rng, rows, 4, 3)
    batch = batch_of(entries, sizes, 4)
    first: Array | None = None
    for backend in paths:
        packed = pack(backend, experts)
        got = backend.expert_units(x, select(packed, batch), batch)
        first = got if first is None else first
        assert_same_bits(got, first, f"{backend.isa} x {backend.threads} hidden={hidden} ffn={ffn}")
        for unit in rng.integers(len(sizes), size=3):  # the unit alone, x reduced to its row
            mine = [(g, 0, s, 0, w) for g, _, s, u, w in entries if u == unit]
            row = next(r for _, r, _, u, _ in entries if u == unit)
            alone = batch_of(mine, [sizes[int(unit)]], 4)
            assert_same_bits(
                backend.expert_units(x[row : row + 1], select(packed, alone), alone),
                first[int(unit) : int(unit) + 1],
                f"unit {unit} alone on {backend.isa} x {backend.threads}",
            )


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_exact_arithmetic_gives_the_same_bits(
    paths: list[CpuBackend], rng: np.random.Generator, dtype: str, kind: str
) -> None:
    """Order of K, silu, rounding of h, weight times output, fold in slot order without fma."""
    for rows_in in ("fp32", "bf16") if dtype == "bf16" else ("fp32",):
        experts = make_experts(rng, 3, 6, 5, dtype, kind)
        x = stored(values(rng, (2, 6), kind), rows_in)
        entries = [(2, 1, 0, 0, 0.5), (0, 1, 1, 0, 0.25), (1, 1, 2, 0, 0.375), (1, 0, 1, 1, 0.7)]
        batch = batch_of([(*e[:4], float(np.float32(e[4]))) for e in entries], [3, 1], 3)
        out = {
            (row, g): exact.expert(widened(x)[row], *(widened(m) for m in experts[g]), bf16=rows_in == "bf16")
            for g, row, *_ in entries
        }
        p = [[exact.mul(float(np.float32(e[4])), v) for v in out[e[1], e[0]]] for e in entries]
        folded = [exact.add(exact.add(a, b), c) for a, b, c in zip(*p[:3], strict=True)]
        expected = np.array([folded, p[3]], np.float32)
        for backend in paths:
            got = backend.expert_units(x, select(pack(backend, experts), batch), batch)
            assert_same_bits(got, expected, f"{backend.isa} x {backend.threads} rows {rows_in}")


@pytest.mark.parametrize("rows_in", ["fp32", "bf16"])
def test_large_batch(paths: list[CpuBackend], rng: np.random.Generator, rows_in: str) -> None:
    """Several tiles per group, and groups of very different sizes; close to float64 and equal on the fast paths."""
    hidden, ffn, rows = 96, 208, 300
    experts = make_experts(rng, 3, hidden, ffn, "bf16", "normal")
    x = stored(values(rng, (rows, hidden), "normal"), rows_in)
    entries = [(0, r, 0, r, 0.6) for r in range(rows)]
    entries += [(1 if r < 290 else 2, r, 1, r, 0.4) for r in range(rows)]
    batch = batch_of(entries, [2] * rows, 3)
    fast = [b for b in paths if b.isa != "portable"] or paths
    first = fast[0].expert_units(x, select(pack(fast[0], experts), batch), batch)
    for backend in fast[1:]:
        got = backend.expert_units(x, select(pack(backend, experts), batch), batch)
        assert_same_bits(got, first, f"{backend.isa} x {backend.threads}")
    expected = np.zeros((rows, hidden))
    for g, (gate, up, down) in enumerate(experts):
        wide = widened(x).astype(np.float64)
        a, b = (wide @ widened(m).astype(np.float64).T for m in (gate, up))
        out = (a / (1 + np.exp(-a)) * b) @ widened(down).astype(np.float64).T
        for group, row, _, unit, weight in entries:
            if group == g:
                expected[unit] += float(np.float32(weight)) * out[row]
    assert relative_rms(first, expected) <= (5e-3 if rows_in == "bf16" else 1e-5)


def test_long_k_is_blocked_exactly(paths: list[CpuBackend], rng: np.random.Generator) -> None:
    """A gate_up panel above 512 KiB is cut into K blocks when several tiles pass over it; one row alone is not."""
    hidden, ffn, rows = 4400, 20, 40
    experts = make_experts(rng, 1, hidden, ffn, "fp32", "normal")
    x = values(rng, (rows, hidden), "normal")
    batch = batch_of([(0, r, 0, r, 1.0) for r in range(rows)], [1] * rows, 1)
    one = batch_of([(0, 0, 0, 0, 1.0)], [1], 1)
    for backend in paths:
        if backend.isa == "portable":
            continue
        packed = pack(backend, experts)
        got = backend.expert_units(x, packed, batch)
        for row in (0, 13, 39):
            alone = backend.expert_units(x[row : row + 1], packed, one)
            assert_same_bits(alone, got[row : row + 1], f"{backend.isa} x {backend.threads} row {row}")


def test_rows_are_gathered_by_index(paths: list[CpuBackend], rng: np.random.Generator) -> None:
    """Entries name rows of x in any order, rows nobody names are not read: here they hold NaN."""
    experts = make_experts(rng, 1, 24, 16, "fp32", "normal")
    x = values(rng, (9, 24), "normal")
    x[[0, 2, 8]] = np.nan
    picks = [7, 1, 5]
    for backend in paths:
        packed = pack(backend, experts)
        batch = UnitBatch(
            np.array([0], np.uint32), np.array([3], np.uint32), np.array(picks, np.uint32), np.zeros(3, np.uint32),
            np.arange(3, dtype=np.uint32), np.ones(3, np.float32), np.ones(3, np.uint32),
        )  # fmt: skip
        got = backend.expert_units(x, packed, batch)
        straight = backend.expert_units(
            np.ascontiguousarray(x[picks]), packed, replace(batch, entry_row=np.arange(3, dtype=np.uint32))
        )
        assert_same_bits(got, straight, backend.isa)


def test_nothing_to_do(paths: list[CpuBackend]) -> None:
    for backend in paths:
        for rows in (0, 3):
            got = backend.expert_units(np.ones((rows, 8), np.float32), [], batch_of([], [], 0))
            assert got.shape == (0, 8)


HIDDEN, FFN = 8, 16
GOOD = batch_of(
    [(0, 0, 0, 0, 0.5), (1, 0, 1, 0, 0.5), (1, 1, 4, 1, 1.0)], [2, 1], 2
)  # unit 0 folded, unit 1 alone


def u32(*v: int) -> Array:
    return np.array(v, np.uint32)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"group_expert": u32(4, 4)}, ValueError, r"batch.group_expert\[1\]: expected more than 4 .*, got 4"),
        ({"group_count": u32(3, 0)}, ValueError, r"batch.group_count\[1\]: expected at least 1, got 0"),
        ({"group_count": u32(1, 1)}, ValueError, r"batch.group_count: expected a sum of 3 entries, got 2"),
        ({"group_count": u32(3)}, ValueError, r"batch.group_count: expected uint32 \[2\], got uint32 \[1\]"),
        ({"entry_row": u32(0, 0, 2)}, ValueError, r"batch.entry_row\[2\]: expected below 2, got 2"),
        ({"entry_row": u32(0, 1, 1)}, ValueError, r"batch.entry_row\[1\]: expected 0 \(unit 0 folds .* row\), got 1"),
        ({"entry_slot": u32(0, 1, 16)}, ValueError, r"batch.entry_slot\[2\]: expected below 16, got 16"),
        ({"entry_slot": u32(0, 2, 4)}, ValueError, r"batch.entry_slot\[1\]: expected below 2 .*, got 2"),
        ({"entry_slot": u32(1, 1, 4)}, ValueError, r"batch.entry_unit\[1\]: expected one entry .* unit 0"),
        ({"entry_slot": u32(0, 1)}, ValueError, r"batch.entry_slot: expected uint32 \[3\], got uint32 \[2\]"),
        ({"entry_unit": u32(0, 0, 2)}, ValueError, r"batch.entry_unit\[2\]: expected below 2, got 2"),
        ({"entry_unit": u32(0, 1, 1)}, ValueError, r"batch.entry_unit\[2\]: expected one entry .* unit 1"),
        ({"entry_weight": np.array([1, np.nan, 1], np.float32)}, ValueError, r"batch.entry_weight\[1\]: .* got .*nan"),
        ({"entry_weight": np.ones(3)}, TypeError, r"batch.entry_weight: expected float32 \[3\], got format 'd' \[3\]"),
        ({"unit_slots": u32(2, 0)}, ValueError, r"batch.unit_slots\[1\]: expected 1 to 16, got 0"),
        ({"unit_slots": u32(2, 17)}, ValueError, r"batch.unit_slots\[1\]: expected 1 to 16, got 17"),
        ({"unit_slots": u32(2, 2)}, ValueError, r"batch.unit_slots: expected a sum of 3 entries, got 4"),
        ({"unit_slots": np.array([2, 1])}, TypeError, r"batch.unit_slots: expected uint32 \[n\], got format 'l' \[2\]"),
    ],
)  # fmt: skip
def test_bad_batches_are_named(
    paths: list[CpuBackend], change: dict[str, Array], error: type[Exception], text: str
) -> None:
    backend = paths[-1]
    experts = pack(backend, make_experts(np.random.default_rng(0), 2, HIDDEN, FFN, "fp32", "normal"))
    x = np.ones((2, HIDDEN), np.float32)
    assert backend.expert_units(x, experts, GOOD).shape == (2, HIDDEN)
    with pytest.raises(error, match=text):
        backend.expert_units(x, experts, replace(GOOD, **change))


def test_bad_experts_are_named(paths: list[CpuBackend]) -> None:
    backend, rng = paths[-1], np.random.default_rng(0)
    good = pack(backend, make_experts(rng, 2, HIDDEN, FFN, "fp32", "normal"))
    x = np.ones((2, HIDDEN), np.float32)
    other_ffn, other_hidden, half = (
        pack(backend, make_experts(rng, 1, h, f, d, "normal"))[0]
        for h, f, d in ((HIDDEN, 2 * FFN, "fp32"), (2 * HIDDEN, FFN, "fp32"), (HIDDEN, FFN, "fp16"))
    )
    for experts, error, text in (
        (good[:1], ValueError, "experts: expected 2 experts, one for each group, got 1"),
        (7, TypeError, "experts: expected a sequence of PackedExpert, got int"),
        ([good[0], 7], TypeError, "experts: expected a packed weight with 'data', got int"),
        (
            [good[0], other_ffn],
            ValueError,
            r"experts\[1\]: expected the ffn and dtype of experts\[0\], got ffn 32",
        ),
        ([good[0], other_hidden], ValueError, r"experts\[1\]: expected hidden 8 as in x, got 16"),
        (
            [good[0], half],
            ValueError,
            r"experts\[1\]: expected the ffn and dtype of experts\[0\], got ffn 16, fp16",
        ),
        (
            [good[0], replace(good[1], ffn=0)],
            ValueError,
            r"experts.ffn: expected an int from 1 to 2\^31, got 0",
        ),
        ([good[0], replace(good[1], ffn=17)], ValueError, r"experts: expected \d+ bytes of packed data"),
    ):
        with pytest.raises(error, match=text):
            backend.expert_units(x, experts, GOOD)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"experts\[0\]: expected bf16, int8 or int4 weights for bf16 rows, got fp32"
    ):
        backend.expert_units(np.zeros((2, HIDDEN), np.uint16), good, GOOD)


def test_bad_expert_matrices_are_named(paths: list[CpuBackend]) -> None:
    gate, up, down = make_experts(np.random.default_rng(0), 1, HIDDEN, FFN, "fp32", "normal")[0]
    cases: tuple[tuple[Weights, type[Exception], str], ...] = (
        ((gate, up[:-1], down), ValueError, r"up: expected float32 \[16, 8\], got float32 \[15, 8\]"),
        ((gate, up, down.T.copy()), ValueError, r"down: expected float32 \[8, 16\], got float32 \[16, 8\]"),
        (
            (gate, up.astype(np.float16), down),
            TypeError,
            r"up: expected float32 \[16, 8\], got float16 \[16, 8\]",
        ),
    )
    for matrices, error, text in cases:
        with pytest.raises(error, match=text):
            paths[0].pack_expert(*matrices, ComputeMode.FP32)
