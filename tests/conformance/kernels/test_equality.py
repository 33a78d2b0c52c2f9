"""The promise, kernel by kernel: the same bits on every instruction path and with any number of threads, for a row
alone or in a crowd, whatever the page size, for a prompt whole or in chunks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from colibri.kernels.api import Backend, ComputeMode, SamplingParams

from .support import Array, assert_same, paged_cache, row_dtype, rows_of, stored, unit_batch, wide_range

#: How inputs are drawn: ordinary, of many magnitudes and cancelling, and so small that products are subnormal.
KINDS = ("ordinary", "wide", "tiny")


def draw(rng: np.random.Generator, kind: str, *shape: int) -> Array:
    if kind == "wide":
        return wide_range(rng, shape)
    scale = 1e-19 if kind == "tiny" else 1.0
    return rng.standard_normal(shape) * scale


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def assert_all_equal(backends: list[Backend], compute: Callable[[Backend], list[Array]]) -> None:
    """`compute` gives the same bits on each backend; the last one listed (portable) is the oracle."""
    expected = compute(backends[-1])
    for backend in backends:
        for number, (got, want) in enumerate(zip(compute(backend), expected, strict=True)):
            assert_same(got, want, f"{backend.isa} with {backend.threads} threads, output {number}")


def test_linear(cpu_backends: list[Backend], rng: np.random.Generator, kind: str) -> None:
    for rows_in, weights_in in (("fp32", "fp32"), ("fp32", "fp16"), ("fp32", "bf16"), ("bf16", "bf16")):
        x = stored(draw(rng, kind, 29, 515), rows_in)
        weight = stored(draw(rng, "ordinary" if weights_in == "fp16" else kind, 70, 515), weights_in)

        def compute(b: Backend, x: Array = x, weight: Array = weight) -> list[Array]:
            return [b.linear(x, b.pack_linear(weight, ComputeMode.FP32))]

        assert_all_equal(cpu_backends, compute)


def test_norm_and_addition(
    cpu_backends: list[Backend], rng: np.random.Generator, kind: str, mode: ComputeMode
) -> None:
    for hidden in (7, 576, 1033):
        x, y = (draw(rng, kind, 65, hidden).astype(np.float32) for _ in range(2))
        weight = draw(rng, "ordinary", hidden).astype(np.float32)

        def compute(b: Backend, x: Array = x, y: Array = y, weight: Array = weight) -> list[Array]:
            total = x.copy()
            b.add_inplace(total, y)
            return [total, b.rms_norm(x, weight, 1e-6, mode), b.rms_norm(x, weight, 0.0, mode)]

        assert_all_equal(cpu_backends, compute)


def attention_inputs(
    rng: np.random.Generator, kind: str, mode: ComputeMode, head_dim: int = 64
) -> tuple[Array, list[Array], list[Array]]:
    """Queries of 40 rows with 6 heads, and K and V of two sequences with 2 heads."""
    dtype = row_dtype(mode)
    q = draw(rng, kind, 40, 6 * head_dim).astype(np.float32)
    k, v = ([stored(draw(rng, kind, 2, n, head_dim), dtype) for n in (150, 77)] for _ in range(2))
    return q, k, v


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("head_dim", [64, 30])
def test_attention(
    cpu_backends: list[Backend],
    rng: np.random.Generator,
    kind: str,
    mode: ComputeMode,
    head_dim: int,
    window: int | None,
) -> None:
    q, k, v = attention_inputs(rng, kind, mode, head_dim)
    kv = paged_cache(
        rng, lengths=[150, 77], kv_heads=2, head_dim=head_dim, page=16, dtype=row_dtype(mode), k=k, v=v
    )
    # A chunk of each sequence (blocks of queries) and single rows between them (row by row).
    sequences = [0] * 20 + [1] * 15 + [0, 1, 0, 1, 0]
    positions = [*range(120, 140), *range(62, 77), 149, 3, 64, 63, 0]
    rows = rows_of(kv, sequences, positions)
    assert_all_equal(cpu_backends, lambda b: [b.attention(q, rows, window, mode)])


@pytest.mark.parametrize("window", [None, 1, 50])
def test_attention_alone_in_a_crowd_and_on_any_page_size(
    cpu_backends: list[Backend], rng: np.random.Generator, kind: str, mode: ComputeMode, window: int | None
) -> None:
    q, k, v = attention_inputs(rng, kind, mode)
    sequences = np.array([0] * 25 + [1] * 15)
    positions = np.array([*range(100, 125), *range(30, 45)])
    for backend in cpu_backends[:1] + cpu_backends[-1:]:
        outputs = []
        for page in (8, 16, 32, 64):
            kv = paged_cache(
                rng, lengths=[150, 77], kv_heads=2, head_dim=64, page=page, dtype=row_dtype(mode), k=k, v=v
            )
            outputs.append(backend.attention(q, rows_of(kv, sequences, positions), window, mode))
            assert_same(outputs[-1], outputs[0], f"page {page}")
            order = rng.permutation(len(q))
            shuffled = backend.attention(
                np.ascontiguousarray(q[order]), rows_of(kv, sequences[order], positions[order]), window, mode
            )
            assert_same(shuffled, outputs[0][order], "another order of rows")
        for row in rng.permutation(len(q))[:8]:
            alone = rows_of(kv, sequences[row : row + 1], positions[row : row + 1])
            got = backend.attention(q[row : row + 1], alone, window, mode)
            assert_same(got, outputs[0][row : row + 1], f"row {row} alone")


@pytest.mark.parametrize("window", [None, 33])
def test_prefill_whole_and_in_chunks(
    cpu_backends: list[Backend], rng: np.random.Generator, mode: ComputeMode, window: int | None
) -> None:
    """RoPE, cache and attention of 150 positions, in chunks of every size, over every page size."""
    heads, kv_heads, head_dim, length = 6, 2, 32, 150
    qkv = rng.standard_normal((length, (heads + 2 * kv_heads) * head_dim)).astype(np.float32)
    for backend in (cpu_backends[0], cpu_backends[1]):
        rope = backend.rope_table(1e4, head_dim, length)
        expected = None
        for chunk, page in ((length, 64), (1, 16), (7, 8), (64, 32), (65, 16), (149, 8)):
            kv = paged_cache(
                rng, lengths=[length], kv_heads=kv_heads, head_dim=head_dim, page=page, dtype=row_dtype(mode)
            )
            parts = []
            for start in range(0, length, chunk):
                positions = np.arange(start, min(start + chunk, length))
                rows = rows_of(kv, np.zeros(len(positions)), positions)
                q = backend.rope_and_store(qkv[positions], rope, rows, heads)
                parts.append(backend.attention(q, rows, window, mode))
            got = np.concatenate(parts)
            expected = got if expected is None else expected
            assert_same(got, expected, f"chunks of {chunk}, pages of {page}")


def test_rope(cpu_backends: list[Backend], rng: np.random.Generator, kind: str, mode: ComputeMode) -> None:
    for head_dim in (64, 30):
        qkv = draw(rng, kind, 33, 10 * head_dim).astype(np.float32)
        kv = paged_cache(rng, lengths=[40], kv_heads=2, head_dim=head_dim, page=8, dtype=row_dtype(mode))

        def compute(b: Backend, kv=kv, qkv=qkv, head_dim=head_dim) -> list[Array]:  # type: ignore[no-untyped-def]
            rows = rows_of(kv, np.zeros(33), np.arange(33) + 7)
            kv.k[:], kv.v[:] = 0, 0
            q = b.rope_and_store(qkv, b.rope_table(5e5, head_dim, 40), rows, 6)
            return [q, kv.k.copy(), kv.v.copy()]

        assert_all_equal(cpu_backends, compute)


def test_gate(cpu_backends: list[Backend], rng: np.random.Generator, kind: str, mode: ComputeMode) -> None:
    for experts, k in ((8, 2), (17, 4), (300, 16)):
        x = stored(draw(rng, kind, 37, 200), row_dtype(mode))
        weight = stored(draw(rng, kind, experts, 200), row_dtype(mode))

        def compute(b: Backend, x: Array = x, weight: Array = weight, k: int = k) -> list[Array]:
            result = b.gate(x, b.pack_linear(weight, mode), k)
            return [result.experts, result.weights, result.ok]

        assert_all_equal(cpu_backends, compute)


def test_gate_is_the_same_for_bf16_rows_widened(
    cpu_backends: list[Backend], rng: np.random.Generator
) -> None:
    """docs/numerics.md: the product always runs on widened rows and weights, whatever the mode."""
    x, weight = stored(rng.standard_normal((9, 300)), "bf16"), stored(rng.standard_normal((12, 300)), "bf16")
    wide = (x.astype(np.uint32) << 16).view(np.float32)
    wide_weight = (weight.astype(np.uint32) << 16).view(np.float32)
    for b in cpu_backends:
        one = b.gate(x, b.pack_linear(weight, ComputeMode.BF16), 3)
        two = b.gate(wide, b.pack_linear(wide_weight, ComputeMode.FP32), 3)
        three = b.gate(x, b.pack_linear(wide_weight, ComputeMode.FP32), 3)
        assert_same(one.weights, two.weights)
        assert_same(one.weights, three.weights)
        assert_same(one.experts, two.experts)


def test_expert_units(
    cpu_backends: list[Backend], rng: np.random.Generator, kind: str, mode: ComputeMode
) -> None:
    hidden, ffn, experts = 130, 70, 4
    kept = [
        [
            stored(draw(rng, kind, *shape), row_dtype(mode))
            for shape in ((ffn, hidden), (ffn, hidden), (hidden, ffn))
        ]
        for _ in range(experts)
    ]
    x = stored(draw(rng, kind, 45, hidden), row_dtype(mode))
    chosen = np.array([rng.permutation(experts)[:2] for _ in range(45)], dtype=np.uint16)
    batch, _ = unit_batch(chosen, rng.random((45, 2)).astype(np.float32), folded=True)

    def compute(b: Backend) -> list[Array]:
        experts_of = (kept[expert] for expert in batch.group_expert)
        packed = [b.pack_expert(gate, up, down, mode) for gate, up, down in experts_of]
        return [b.expert_units(x, packed, batch)]

    assert_all_equal(cpu_backends, compute)


def test_rows_alone_and_in_a_crowd(
    cpu_backends: list[Backend], rng: np.random.Generator, mode: ComputeMode
) -> None:
    """Every product, norm and expert: any subset of rows gives those rows' bits."""
    hidden, ffn, total = 100, 48, 67
    x = stored(rng.standard_normal((total, hidden)), row_dtype(mode))
    residual = rng.standard_normal((total, hidden)).astype(np.float32)
    weight = stored(rng.standard_normal((50, hidden)), row_dtype(mode))
    gate, up, down = (
        stored(rng.standard_normal(s), row_dtype(mode)) for s in ((ffn, hidden), (ffn, hidden), (hidden, ffn))
    )
    norm = rng.standard_normal(hidden).astype(np.float32)
    weights = rng.random((total, 1)).astype(np.float32)
    for b in cpu_backends:
        packed, expert = b.pack_linear(weight, mode), b.pack_expert(gate, up, down, mode)

        def compute(rows: Array, b=b, packed=packed, expert=expert) -> list[Array]:  # type: ignore[no-untyped-def]
            batch, _ = unit_batch(np.zeros((len(rows), 1), dtype=np.uint16), weights[rows], folded=False)
            some = np.ascontiguousarray(x[rows])
            gate = b.gate(some, packed, 4)
            return [
                b.linear(some, packed),
                b.rms_norm(np.ascontiguousarray(residual[rows]), norm, 1e-5, mode),
                gate.experts,
                gate.weights,
                b.expert_units(some, [expert] if len(rows) else [], batch),
            ]

        whole = compute(np.arange(total))
        for count in (1, 2, 7, 12, 13, 14, 15, 16, 33, 66):
            rows = np.sort(rng.permutation(total)[:count])
            for number, (got, want) in enumerate(zip(compute(rows), whole, strict=True)):
                assert_same(got, np.ascontiguousarray(want[rows]), f"{b.isa}, output {number}, {count} rows")


def test_merge_and_sampling(cpu_backends: list[Backend], rng: np.random.Generator, kind: str) -> None:
    parts = [draw(rng, kind, 60, 577).astype(np.float32) for _ in range(2)]
    part = rng.integers(0, 2, 90).astype(np.uint32)
    index = rng.integers(0, 60, 90).astype(np.uint32)
    offsets = np.arange(0, 91, 3, dtype=np.uint32)
    logits = (draw(rng, kind, 5000) * 3).astype(np.float32)
    seeds = rng.integers(0, 2**63, 10)

    def compute(b: Backend) -> list[Array]:
        drawn = [
            b.sample(logits, SamplingParams(t, k, p, int(seed)), 3)
            for seed in seeds
            for t, k, p in ((0.0, 0, 1.0), (0.8, 0, 1.0), (1.0, 40, 1.0), (1.5, 300, 0.9))
        ]
        return [b.merge(parts, part, index, offsets), np.array(drawn)]

    assert_all_equal(cpu_backends, compute)
