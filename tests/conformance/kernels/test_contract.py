"""Bit for bit what docs/numerics.md says, on every instruction path (contract.py retells the document)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from colibri.kernels.api import Backend, ComputeMode
from colibri.kernels.cpu.backend import CpuBackend

from . import contract
from .conftest import PATHS
from .support import Array, assert_same, paged_cache, row_dtype, rows_of, stored, unit_batch, wide_range


@pytest.fixture(scope="module", params=PATHS)
def cpu(request: pytest.FixtureRequest) -> Iterator[Backend]:
    backend = CpuBackend(threads=2, isa=request.param)
    yield backend
    backend.close()


def magnitudes(rng: np.random.Generator, *shape: int) -> Array:
    """Ordinary rows, rows of many magnitudes, and rows whose products are subnormal."""
    x = rng.standard_normal(shape)
    x[1::3] = wide_range(rng, x[1::3].shape)
    x[2::3] *= 1e-20
    return x


@pytest.mark.parametrize(
    ("rows_in", "weights_in"), [("fp32", "fp32"), ("fp32", "fp16"), ("fp32", "bf16"), ("bf16", "bf16")]
)
def test_linear(cpu: Backend, rng: np.random.Generator, rows_in: str, weights_in: str) -> None:
    for n, k in ((1, 1), (33, 17), (20, 131), (5, 4200)):
        x = stored(magnitudes(rng, 7, k), rows_in)
        weight = stored(
            rng.standard_normal((n, k)) if weights_in == "fp16" else magnitudes(rng, n, k), weights_in
        )
        got = cpu.linear(x, cpu.pack_linear(weight, ComputeMode.FP32))
        assert_same(got, contract.product(x, weight), f"n={n} k={k}")


def test_norm(cpu: Backend, rng: np.random.Generator, mode: ComputeMode) -> None:
    for hidden in (1, 15, 16, 33, 576):
        x = magnitudes(rng, 9, hidden).astype(np.float32)
        weight = rng.standard_normal(hidden).astype(np.float32)
        got = cpu.rms_norm(x, weight, 1e-5, mode)
        assert_same(got, contract.rms_norm(x, weight, 1e-5, row_dtype(mode)), f"hidden={hidden}")


def test_rope(cpu: Backend, rng: np.random.Generator, mode: ComputeMode) -> None:
    for head_dim in (2, 30, 64):
        qkv = magnitudes(rng, 21, 5 * head_dim).astype(np.float32)
        table = cpu.rope_table(1e4, head_dim, 300)
        kv = paged_cache(rng, lengths=[300], kv_heads=1, head_dim=head_dim, page=16, dtype=row_dtype(mode))
        positions = rng.permutation(300)[:21]
        q = cpu.rope_and_store(qkv, table, rows_of(kv, [0] * 21, positions), 3)
        vectors = contract.flushed(qkv).reshape(21, 5, head_dim)
        turned = contract.rope(vectors[:, :4], table.cos[positions], table.sin[positions])
        assert_same(q, np.ascontiguousarray(turned[:, :3]).reshape(21, 3 * head_dim))
        for row, position in enumerate(positions):
            page, slot = kv.page_table[0, position // 16], position % 16
            assert_same(kv.k[page, 0, slot], contract.rounded(turned[row, 3], row_dtype(mode)))
            assert_same(kv.v[page, 0, slot], contract.rounded(vectors[row, 4], row_dtype(mode)))


@pytest.mark.parametrize("window", [None, 70])
def test_attention(cpu: Backend, rng: np.random.Generator, mode: ComputeMode, window: int | None) -> None:
    dtype = row_dtype(mode)
    for head_dim, scale in ((64, 1.0), (18, 5.0), (32, 1e-19)):
        k, v = (stored(rng.standard_normal((1, 150, head_dim)) * scale, dtype) for _ in range(2))
        kv = paged_cache(
            rng, lengths=[150], kv_heads=1, head_dim=head_dim, page=16, dtype=dtype, k=[k], v=[v]
        )
        # Single rows, then a chunk: both forms of the kernel.
        positions = [0, 63, 149, 64, *range(61, 73)]
        sequences = [0] * len(positions)
        q = rng.standard_normal((len(positions), 3 * head_dim)).astype(np.float32)
        expected = np.array(
            [
                contract.attention(query, contract.widened(k[0]), contract.widened(v[0]), position, window)
                for row, position in zip(q, positions, strict=True)
                for query in row.reshape(3, head_dim)
            ]
        ).reshape(q.shape)
        whole = cpu.attention(q, rows_of(kv, sequences, positions), window, mode)
        assert_same(whole, contract.rounded(expected, dtype), f"head_dim={head_dim}")
        for row in range(4):
            alone = cpu.attention(q[row : row + 1], rows_of(kv, [0], [positions[row]]), window, mode)
            assert_same(alone, whole[row : row + 1], f"head_dim={head_dim} row {row} alone")


def test_gate(cpu: Backend, rng: np.random.Generator, mode: ComputeMode) -> None:
    for experts, k in ((8, 2), (33, 16)):
        x = stored(rng.standard_normal((12, 50)), row_dtype(mode))
        weight = stored(rng.standard_normal((experts, 50)), row_dtype(mode))
        got = cpu.gate(x, cpu.pack_linear(weight, mode), k)
        for row, logits in enumerate(contract.product(x, weight)):
            chosen, weights = contract.gate(logits, k)
            assert got.experts[row].tolist() == chosen
            assert_same(got.weights[row], weights)


def test_experts(cpu: Backend, rng: np.random.Generator, mode: ComputeMode) -> None:
    dtype, hidden, ffn = row_dtype(mode), 40, 35
    matrices = [
        [stored(rng.standard_normal(shape), dtype) for shape in ((ffn, hidden), (ffn, hidden), (hidden, ffn))]
        for _ in range(3)
    ]
    x = stored(magnitudes(rng, 20, hidden), dtype)
    chosen = np.array([rng.permutation(3)[:2] for _ in range(20)], dtype=np.uint16)
    weights = rng.random((20, 2)).astype(np.float32)
    batch, _ = unit_batch(chosen, weights, folded=True)
    got = cpu.expert_units(x, [cpu.pack_expert(gate, up, down, mode) for gate, up, down in matrices], batch)
    outs = [contract.expert(x, gate, up, down, dtype) for gate, up, down in matrices]
    rows = np.arange(20)
    slots = [
        contract.mul(
            weights[:, s, None], np.array([outs[e][r] for r, e in zip(rows, chosen[:, s], strict=True)])
        )
        for s in (0, 1)
    ]
    assert_same(got, contract.add(slots[0], slots[1]))
