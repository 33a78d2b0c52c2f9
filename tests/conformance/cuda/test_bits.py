"""What the CUDA kernels promise to the bit: all but the tensor cores' sums equals the CPU backend, and a row's result
does not depend on its company, on tiles or on the order in which threads run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from colibri.kernels.api import Backend, ComputeMode, SamplingParams
from colibri.kernels.cpu.backend import CpuBackend
from colibri.kernels.cuda.backend import CudaBackend
from tests.conformance.kernels.support import (
    Array,
    assert_same,
    paged_cache,
    row_dtype,
    rows_of,
    stored,
    unit_batch,
    wide_range,
)
from tests.conformance.kernels.test_experts import matrices
from tests.support.cuda.emulated import DESCENDING, LATE_COPIES, EmulatedDevice

pytestmark = pytest.mark.slow  # a compiler, and an emulated device
FORMATS = ("bf16", "int8", "int4")


@pytest.fixture(scope="module")
def plain() -> Iterator[CudaBackend]:
    made = CudaBackend(EmulatedDevice(75), weight_bytes=1 << 28, block_size=64)
    yield made
    made.close()


@pytest.fixture(scope="module")
def tensor() -> Iterator[CudaBackend]:
    made = CudaBackend(EmulatedDevice(90, schedule=LATE_COPIES), weight_bytes=1 << 28)
    yield made
    made.close()


@pytest.fixture(scope="module")
def cpu() -> Iterator[CpuBackend]:
    made = CpuBackend(1, "portable")
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["ordinary", "wide"])
def test_products_by_plain_fma_are_the_cpus(
    plain: CudaBackend, cpu: CpuBackend, rng: np.random.Generator, kind: str
) -> None:
    for rows_in, weights_in in (("fp32", "fp32"), ("fp32", "fp16"), ("fp32", "bf16"), ("bf16", "bf16")):
        for rows, n, k in ((1, 33, 31), (17, 70, 515), (33, 1, 64)):
            x, w = (
                rng.standard_normal(s) if kind == "ordinary" or weights_in == "fp16" else wide_range(rng, s)
                for s in ((rows, k), (n, k))
            )
            packed = cpu.pack_linear(stored(w, weights_in), ComputeMode.FP32)
            rows_ = stored(x, rows_in)
            assert_same(plain.linear(rows_, packed), cpu.linear(rows_, packed), f"{rows_in} {weights_in} {k}")


@pytest.mark.parametrize("folded", [True, False])
def test_experts_by_plain_fma_are_the_cpus(
    plain: CudaBackend, cpu: CpuBackend, rng: np.random.Generator, mode: ComputeMode, folded: bool
) -> None:
    packed = [cpu.pack_expert(*matrices(rng, 83, 41, row_dtype(mode)), mode) for _ in range(4)]
    x = stored(rng.standard_normal((37, 83)), row_dtype(mode))
    chosen = np.array([rng.permutation(4)[:3] for _ in x], dtype=np.uint16)
    batch, _ = unit_batch(chosen, rng.random(chosen.shape).astype(np.float32), folded=folded, only={0, 1, 3})
    experts = [packed[e] for e in batch.group_expert]
    assert_same(plain.expert_units(x, experts, batch), cpu.expert_units(x, experts, batch))


def test_norm_rope_attention_and_embedding_are_the_cpus(
    tensor: CudaBackend, cpu: CpuBackend, rng: np.random.Generator, mode: ComputeMode
) -> None:
    x = wide_range(rng, (19, 131), 4).astype(np.float32)
    weight = rng.standard_normal(131).astype(np.float32)
    assert_same(tensor.rms_norm(x, weight, 1e-5, mode), cpu.rms_norm(x, weight, 1e-5, mode))
    table = cpu.pack_linear(stored(rng.standard_normal((40, 131)), row_dtype(mode)), mode)
    quantised = cpu.quantize_linear(stored(rng.standard_normal((40, 131)), row_dtype(mode)), "int4", 32)
    ids = rng.integers(0, 40, 9).astype(np.uint32)
    for each in (table, quantised):
        assert_same(tensor.embed(each, ids), cpu.embed(each, ids))
    rows = 21
    sequences = [0] * 15 + [1] * 6
    positions = [*range(120, 135), *range(59, 65)]
    k, v = ([stored(rng.standard_normal((2, n, 24)), row_dtype(mode)) for n in (135, 65)] for _ in range(2))
    caches = [
        paged_cache(
            np.random.default_rng(5),
            lengths=[135, 65],
            kv_heads=2,
            head_dim=24,
            page=16,
            dtype=row_dtype(mode),
            k=k,
            v=v,
        )
        for _ in range(2)
    ]
    qkv = rng.standard_normal((rows, (6 + 4) * 24)).astype(np.float32)
    rope = cpu.rope_table(1e4, 24, 200)
    out = []
    backends: tuple[Backend, Backend] = (tensor, cpu)
    for backend, cache in zip(backends, caches, strict=True):
        view = rows_of(cache, sequences, positions)
        q = backend.rope_and_store(qkv, rope, view, 6)
        out.append(
            [q, *(backend.attention(q, view, window, mode) for window in (None, 40)), cache.k, cache.v]
        )
    for got, expected in zip(*out, strict=True):
        assert_same(got, expected)


def test_sampling_and_log_probabilities_are_the_cpus(
    tensor: CudaBackend, cpu: CpuBackend, rng: np.random.Generator
) -> None:
    for count in (1, 17, 300, 1000):
        logits = (rng.standard_normal(count) * 3).astype(np.float32)
        for params in (
            SamplingParams(),
            SamplingParams(0.7, seed=int(rng.integers(1 << 40))),
            SamplingParams(1.3, top_k=5, top_p=0.6, min_p=0.05, seed=7),
            SamplingParams(1.0, top_p=0.9, choice=3),
        ):
            for index in range(4):
                assert tensor.sample(logits, params, index) == cpu.sample(logits, params, index)
        assert_same(tensor.log_sum_exp(logits[None]), cpu.log_sum_exp(logits[None]))


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_row_alone_is_the_row_among_512(tensor: CudaBackend, rng: np.random.Generator, dtype: str) -> None:
    """Whatever kernel its number of rows chooses."""
    n, k = 65, 600
    w = stored(rng.standard_normal((n, k)), "bf16")
    packed = (
        tensor.pack_linear(w, ComputeMode.BF16) if dtype == "bf16" else tensor.quantize_linear(w, dtype, 64)
    )
    x = stored(rng.standard_normal((512, k)), "bf16")
    whole = tensor.linear(x, packed)
    for first, rows in ((0, 1), (511, 1), (130, 1), (64, 8), (7, 9), (100, 32), (33, 33), (128, 129)):
        part = np.ascontiguousarray(x[first : first + rows])
        assert_same(tensor.linear(part, packed), whole[first : first + rows], f"{rows} rows from {first}")


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("hidden", [16, 200, 520])
def test_an_expert_row_alone_is_the_row_among_512(
    tensor: CudaBackend, rng: np.random.Generator, dtype: str, hidden: int
) -> None:
    ffn = 40
    parts = matrices(rng, hidden, ffn, "bf16")
    packed = (
        tensor.pack_expert(*parts, ComputeMode.BF16)
        if dtype == "bf16"
        else tensor.quantize_expert(*parts, dtype, 32)
    )
    x = stored(rng.standard_normal((512, hidden)), "bf16")

    def run(backend: CudaBackend, rows: Array) -> Array:
        chosen = np.zeros((len(rows), 1), dtype=np.uint16)
        weights = np.full((len(rows), 1), 0.75, dtype=np.float32)
        batch, _ = unit_batch(chosen, weights, folded=False)
        return backend.expert_units(np.ascontiguousarray(rows), [packed], batch)

    whole = run(tensor, x)
    for first, rows in ((0, 1), (511, 1), (40, 8), (100, 21), (70, 64)):
        assert_same(run(tensor, x[first : first + rows]), whole[first : first + rows], f"{rows} rows")
    for schedule in (0, DESCENDING, DESCENDING | LATE_COPIES):
        other = CudaBackend(EmulatedDevice(80, schedule=schedule, processors=1), weight_bytes=1 << 24)
        assert_same(run(other, x[:70]), whole[:70], f"schedule {schedule}")


def test_the_gate_and_its_groups(tensor: CudaBackend, rng: np.random.Generator, mode: ComputeMode) -> None:
    """A row alone is the row in a crowd; groups leave bad rows out."""
    for experts in (8, 20, 70):
        weight = tensor.pack_linear(stored(rng.standard_normal((experts, 131)), row_dtype(mode)), mode)
        values = rng.standard_normal((50, 131))
        values[7, 3] = np.inf
        x = stored(values, row_dtype(mode))
        x[7, 3] = 0x7F80 if mode is ComputeMode.BF16 else np.inf
        gated, offsets, order = tensor.gate_and_group(x, weight, 2)
        assert np.flatnonzero(~gated.ok).tolist() == [7]
        for row in (0, 7, 49):
            alone = tensor.gate(np.ascontiguousarray(x[row : row + 1]), weight, 2)
            assert_same(alone.weights, gated.weights[row : row + 1])
            assert_same(alone.experts, gated.experts[row : row + 1])
        pairs = [i for i in range(100) if gated.ok[i // 2]]
        keys = gated.experts.reshape(-1)
        assert order.tolist() == sorted(pairs, key=lambda i: (keys[i], i))
        counts = np.bincount(keys[pairs], minlength=experts)
        assert offsets.tolist() == [0, *np.cumsum(counts).tolist()]
