"""Every kernel of a CUDA backend against the float64 reference, with fresh inputs, and what it promises to the bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cuda.generation import check_generation
from colibri.kernels.api import Backend, ComputeMode, KvView, PackedExpert, PackedLinear, SamplingParams
from colibri.kernels.cuda.backend import CudaBackend
from colibri.kernels.reference import ReferenceBackend, quantised
from tests.conformance.kernels.support import (
    FP32_BOUND,
    as_float64,
    assert_close,
    assert_same,
    bf16,
    bound,
    paged_cache,
    row_dtype,
    rows_of,
    silu,
    stored,
    unit_batch,
)

Array = NDArray[Any]
SIZES = (1, 2, 15, 16, 17, 31, 33)
FORMATS = ("bf16", "int8", "int4")
_REFERENCE = ReferenceBackend()


def packed_linear(rng: np.random.Generator, dtype: str, n: int, k: int) -> tuple[PackedLinear, Array]:
    """A packed matrix and its values, float64 [n, k]."""
    w = stored(rng.standard_normal((n, k)), "fp32" if dtype == "fp32" else "bf16")
    if dtype not in ("int8", "int4"):
        return _REFERENCE.pack_linear(w, ComputeMode.FP32), as_float64(w)
    packed = _REFERENCE.quantize_linear(w, dtype, 64)
    return packed, as_float64(quantised.dequantize_linear(packed))


def products(backend: CudaBackend, rng: np.random.Generator) -> None:
    for dtype, rows_in in (("fp32", "fp32"), *((f, "bf16") for f in FORMATS), ("int4", "fp32")):
        for rows in (*SIZES, 130):
            n, k = int(rng.choice(SIZES)), int(rng.choice((*SIZES, 130, 520)))
            packed, wide = packed_linear(rng, dtype, n, k)
            x = stored(rng.standard_normal((rows, k)), rows_in)
            error = backend.linear(x, packed) - as_float64(x) @ wide.T
            limit = FP32_BOUND * np.sqrt(k)
            worst = float(np.sqrt(np.mean(error**2)))
            assert worst <= limit, f"{dtype} {rows}x{n}x{k}: at most {limit}, got {worst}"


def experts(backend: CudaBackend, rng: np.random.Generator) -> None:
    for dtype in FORMATS:
        for rows, hidden, ffn in ((1, 32, 48), (9, 136, 80), (90, 64, 33)):
            made: list[PackedExpert] = []
            wide = []
            for _ in range(4):
                parts = [
                    stored(rng.standard_normal(s) / 8, "bf16")
                    for s in ((ffn, hidden), (ffn, hidden), (hidden, ffn))
                ]
                made.append(_expert(parts, dtype))
                wide.append([as_float64(m) for m in _matrices(made[-1])])
            x = stored(rng.standard_normal((rows, hidden)), "bf16")
            chosen = np.array([rng.permutation(4)[:2] for _ in x], dtype=np.uint16)
            weights = rng.random(chosen.shape).astype(np.float32)
            batch, units = unit_batch(chosen, weights, folded=True)
            got = backend.expert_units(x, [made[e] for e in batch.group_expert], batch)
            expected = np.zeros((len(units), hidden))
            for unit, members in enumerate(units):
                for row, slot in members:
                    gate, up, down = wide[chosen[row, slot]]
                    wide_row = as_float64(x[row])
                    middle = as_float64(bf16(silu(gate @ wide_row) * (up @ wide_row)))
                    expected[unit] += float(weights[row, slot]) * (down @ middle)
            assert_close(got, expected, 5e-3)


def batch_invariance(backend: CudaBackend, rng: np.random.Generator) -> None:
    """A row alone is the row among 512, from every kernel its number of rows may choose."""
    for dtype in FORMATS:
        packed, _ = packed_linear(rng, dtype, 96, 600)
        x = stored(rng.standard_normal((512, 600)), "bf16")
        whole = backend.linear(x, packed)
        for first, rows in ((0, 1), (511, 1), (64, 8), (100, 32), (128, 129)):
            part = np.ascontiguousarray(x[first : first + rows])
            assert_same(backend.linear(part, packed), whole[first : first + rows], f"{dtype}, {rows} rows")


def dense(backend: CudaBackend, rng: np.random.Generator) -> None:
    """Norm, RoPE, attention, embedding."""
    for mode in ComputeMode:
        x = rng.standard_normal((17, 576)).astype(np.float32)
        weight = rng.standard_normal(576).astype(np.float32)
        _against(partial(_norm, x, weight, mode), backend, bound(mode))
        table, _ = packed_linear(rng, "bf16", 40, 66)
        ids = rng.integers(0, 40, 11).astype(np.uint32)
        assert_same(backend.embed(table, ids), _REFERENCE.embed(table, ids))
        dtype = row_dtype(mode)
        k, v = ([stored(rng.standard_normal((2, 150, 32)), dtype)] for _ in range(2))
        cache = paged_cache(rng, lengths=[150], kv_heads=2, head_dim=32, page=16, dtype=dtype, k=k, v=v)
        view = rows_of(cache, [0] * 12, range(138, 150))
        q = rng.standard_normal((12, 8 * 32)).astype(np.float32)
        for window in (None, 33):
            _against(partial(_attend, q, view, window, mode), backend, bound(mode))
        qkv = rng.standard_normal((12, 12 * 32)).astype(np.float32)
        rope = _REFERENCE.rope_table(1e4, 32, 200)
        outputs = []
        for each in (backend, _REFERENCE):
            own = KvView(cache.k.copy(), cache.v.copy(), cache.page_table, view.row_sequence, view.positions)
            outputs.append((each.rope_and_store(qkv, rope, own, 8), own.k, own.v))
        for got, expected in zip(*outputs, strict=True):
            assert_same(got, expected)


def routing(backend: CudaBackend, rng: np.random.Generator) -> None:
    """Gate, grouping, merge."""
    for count, hidden, k in ((8, 576, 2), (33, 40, 4), (256, 64, 8)):
        packed, wide = packed_linear(rng, "bf16", count, hidden)
        x = stored(rng.standard_normal((70, hidden)), "bf16")
        got, offsets, order = backend.gate_and_group(x, packed, k)
        best = -np.sort(-(as_float64(x) @ wide.T), axis=1)[:, :k]
        chosen = np.take_along_axis(as_float64(x) @ wide.T, got.experts.astype(np.int64), axis=1)
        np.testing.assert_allclose(chosen, best, rtol=1e-5, atol=1e-4)
        keys = got.experts.reshape(-1)
        assert order.tolist() == np.argsort(keys, kind="stable").tolist()
        assert offsets[-1] == len(keys)
    many = rng.integers(0, 300, 5000).astype(np.uint32)
    for mine, expected in zip(backend.group(many, 300), _REFERENCE.group(many, 300), strict=True):
        assert_same(mine, expected)
    parts = [rng.standard_normal((9, 130)).astype(np.float32) for _ in range(2)]
    part, index = (rng.integers(0, high, 20).astype(np.uint32) for high in (2, 9))
    ends = np.array([0, 2, 2, 9, 20], dtype=np.uint32)
    assert_same(backend.merge(parts, part, index, ends), _REFERENCE.merge(parts, part, index, ends))


def sampling(backend: CudaBackend, rng: np.random.Generator) -> None:
    for count in (1, 1000, 32000):
        logits = (rng.standard_normal(count) * 3).astype(np.float32)
        for params in (SamplingParams(), SamplingParams(0.8, 40, 0.9, 11, 0, 0.01)):
            assert backend.sample(logits, params, 5) == _REFERENCE.sample(logits, params, 5)
        assert_same(backend.log_sum_exp(logits[None]), _REFERENCE.log_sum_exp(logits[None]))


Check = Callable[[CudaBackend, np.random.Generator], None]
CHECKS: dict[str, Check] = {
    "products": products,
    "experts": experts,
    "batch invariance": batch_invariance,
    "norm, rope, attention": dense,
    "gate, groups, merge": routing,
    "sampling": sampling,
    "generation, one worker and two": check_generation,
}


def _norm(x: Array, weight: Array, mode: ComputeMode, backend: Backend) -> Array:
    return backend.rms_norm(x, weight, 1e-5, mode)


def _attend(q: Array, kv: KvView, window: int | None, mode: ComputeMode, backend: Backend) -> Array:
    return backend.attention(q, kv, window, mode)


def _against(call: Callable[[Backend], Array], backend: Backend, limit: float) -> None:
    assert_close(call(backend), as_float64(call(_REFERENCE)), limit)


def _expert(parts: list[Array], dtype: str) -> PackedExpert:
    gate, up, down = parts
    if dtype == "bf16":
        return _REFERENCE.pack_expert(gate, up, down, ComputeMode.BF16)
    return _REFERENCE.quantize_expert(gate, up, down, dtype, 32)


def _matrices(expert: PackedExpert) -> tuple[Array, ...]:
    from colibri.kernels.layout.packing import unpack_expert

    if expert.dtype == "bf16":
        return unpack_expert(expert)
    return tuple(
        m.numbers * np.repeat(as_float64(m.scales), expert.group, axis=1)[:, : m.numbers.shape[1]]
        for m in quantised.unpack_expert(expert)
    )
