"""Quantising weights: the same bytes from every backend, laid out as written, int4 never worse than plain rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from colibri.kernels.api import Backend, ComputeMode
from colibri.kernels.layout.packing import packed_expert_bytes, packed_linear_bytes
from colibri.kernels.reference import ReferenceBackend
from colibri.kernels.reference.quantised import dequantize_expert, dequantize_linear

from .quantised_support import FORMATS, KINDS, draw, read, read_expert, values
from .support import SIZES, Array, as_float64, assert_same, bf16, stored, unit_batch

REFERENCE = ReferenceBackend()


def importance(rng: np.random.Generator, k: int) -> Array:
    return np.exp2(rng.uniform(-12, 12, k)).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "group"), FORMATS)
def test_the_same_bytes_from_every_backend(
    cpu_backends: list[Backend], rng: np.random.Generator, dtype: str, group: int, kind: str
) -> None:
    for n, k in ((1, 1), (33, 31), (40, 168)):
        source = str(rng.choice(["fp32", "bf16", *(["fp16"] if kind in ("ordinary", "saturating") else [])]))
        weight = stored(draw(rng, kind, n, k), source)
        some = importance(rng, k) if dtype == "int4" and rng.random() < 0.5 else None
        want = REFERENCE.quantize_linear(weight, dtype, group, some)
        for b in cpu_backends:
            got = b.quantize_linear(weight, dtype, group, some)
            assert (got.dtype, got.n, got.k, got.group) == (dtype, n, k, group)
            assert got.data.ctypes.data % 64 == 0
            assert got.data.size == packed_linear_bytes(dtype, n, k, group)
            assert_same(got.data, want.data, f"{b.isa} n={n} k={k} {source}")
        numbers = read(want.data, dtype, n, k, group)
        assert_same(dequantize_linear(want), values(numbers, group).astype(np.float32))


@pytest.mark.parametrize(("dtype", "group"), FORMATS)
def test_experts_are_their_matrices(
    backend: Backend, rng: np.random.Generator, dtype: str, group: int
) -> None:
    for hidden, ffn in ((1, 1), (17, 33), (33, 31), (72, 150)):
        gate, up = (draw(rng, "ordinary", ffn, hidden).astype(np.float32) for _ in range(2))
        down = draw(rng, "ordinary", hidden, ffn).astype(np.float32)
        some = (importance(rng, hidden), importance(rng, ffn)) if dtype == "int4" else None
        expert = backend.quantize_expert(gate, up, down, dtype, group, some)
        assert expert.data.size == packed_expert_bytes(dtype, hidden, ffn, group)
        plain = dequantize_expert(expert)
        for part, (matrix, read_part) in enumerate(zip((gate, up, down), read_expert(expert), strict=True)):
            share = None if some is None else some[part == 2]
            alone = backend.quantize_linear(matrix, dtype, group, share)
            n, k = matrix.shape
            numbers, scales = read(alone.data, dtype, n, k, group)
            assert np.array_equal(read_part[0], numbers)
            assert_same(read_part[1], scales)
            assert_same(plain[part], dequantize_linear(alone))


@pytest.mark.parametrize("group", [32, 64, 128])
def test_int8_is_rounding_to_the_largest(backend: Backend, rng: np.random.Generator, group: int) -> None:
    weight = draw(rng, "wide", 35, 150).astype(np.float32)
    numbers, scales = read(backend.quantize_linear(weight, "int8", group).data, "int8", 35, 150, group)
    for g, start in enumerate(range(0, 150, group)):
        part = weight[:, start : start + group].astype(np.float64)
        largest = np.abs(part).max(axis=1)
        assert_same(
            scales[:, g], as_float64(bf16(largest.astype(np.float32) / np.float32(127))).astype(np.float32)
        )
        exact = part / scales[:, g, None]
        off = np.abs(numbers[:, start : start + group] - exact.clip(-127, 127))
        assert off.max() <= 0.5 + 1e-4


@pytest.mark.parametrize("kind", ["ordinary", "wide", "saturating", "zero"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_is_never_worse_than_plain_rounding(
    backend: Backend, rng: np.random.Generator, group: int, weighted: bool, kind: str
) -> None:
    """In each group's weighted squared error, plain rounding being scale = extreme / -8 in bf16."""
    n, k = 33, 2 * group + 9
    weight = draw(rng, kind, n, k).astype(np.float32)
    some = importance(rng, k) if weighted else None
    numbers = read(backend.quantize_linear(weight, "int4", group, some).data, "int4", n, k, group)
    got = (values(numbers, group) - weight) ** 2
    for start in range(0, k, group):
        part = weight[:, start : start + group]
        own = np.sqrt(
            (part.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + part.astype(np.float64) ** 2
        )
        share = own if some is None else some[None, start : start + group].astype(np.float64)
        extreme = np.take_along_axis(part, np.abs(part).argmax(axis=1)[:, None], axis=1)
        scale = as_float64(bf16(extreme / np.float32(-8)))
        rounded = np.rint(part / np.where(scale == 0, 1, scale)).clip(-8, 7) * scale
        plain = ((rounded - part) ** 2 * share).sum(axis=1)
        ours = (got[:, start : start + group] * share).sum(axis=1)
        assert (ours <= plain * (1 + 1e-4)).all()
        if kind == "ordinary" and part.shape[1] == group:
            assert ours.sum() < 0.97 * plain.sum()


@pytest.mark.parametrize(("dtype", "group"), FORMATS)
def test_embed_dequantises(backend: Backend, rng: np.random.Generator, dtype: str, group: int) -> None:
    for vocabulary, hidden in ((1, 1), (33, 17), (70, 200)):
        packed = backend.quantize_linear(
            draw(rng, "wide", vocabulary, hidden).astype(np.float32), dtype, group
        )
        table = dequantize_linear(packed)
        for rows in (0, *SIZES):
            ids = rng.integers(0, vocabulary, rows).astype(np.uint32)
            assert_same(backend.embed(packed, ids), table[ids])


Call = Callable[[Backend], Any]


def shares(n: int, third: float = 1.0, dtype: Any = np.float32) -> Any:
    some = np.ones(n, dtype=dtype)
    some[2] = third
    return some


def weight_with(value: float) -> Array:
    weight = np.ones((3, 40), dtype=np.float32)
    weight[1, 7] = value
    return weight


ONES = np.ones((3, 40), dtype=np.float32)


def units(*changes: dict[str, Any]) -> Call:
    """One row through experts that differ from a good one by `changes`."""

    def call(b: Backend) -> Any:
        batch, _ = unit_batch(
            np.arange(len(changes), dtype=np.uint16)[None],
            np.ones((1, len(changes)), np.float32),
            folded=True,
        )
        good = b.quantize_expert(ONES, ONES, np.ascontiguousarray(ONES.T), "int8", 32)
        return b.expert_units(ONES[:1], [replace(good, **change) for change in changes], batch)

    return call


CASES: list[tuple[str, type[Exception], Call]] = [
    ("dtype", ValueError, lambda b: b.quantize_linear(ONES, "int2", 32)),
    ("dtype", ValueError, lambda b: b.quantize_linear(ONES, "bf16", 32)),
    ("group", ValueError, lambda b: b.quantize_linear(ONES, "int8", 0)),
    ("group", ValueError, lambda b: b.quantize_linear(ONES, "int4", 48)),
    ("group", ValueError, lambda b: b.quantize_linear(ONES, "int4", 256)),
    ("weight", ValueError, lambda b: b.quantize_linear(weight_with(np.nan), "int8", 32)),
    ("weight", ValueError, lambda b: b.quantize_linear(weight_with(-np.inf), "int4", 32)),
    ("weight", ValueError, lambda b: b.quantize_linear(weight_with(np.nan).astype(np.float16), "int4", 32)),
    ("weight", TypeError, lambda b: b.quantize_linear(ONES.astype(np.float64), "int8", 32)),
    ("weight", ValueError, lambda b: b.quantize_linear(ONES[:, ::2], "int8", 32)),
    ("weight", ValueError, lambda b: b.quantize_linear(ONES[:0], "int8", 32)),
    ("importance", ValueError, lambda b: b.quantize_linear(ONES, "int4", 32, shares(39))),
    ("importance", TypeError, lambda b: b.quantize_linear(ONES, "int4", 32, shares(40, dtype=np.float64))),
    (
        "importance[2]",
        ValueError,
        lambda b: b.quantize_linear(ONES, "int4", 32, shares(40, -1)),
    ),
    ("importance", ValueError, lambda b: b.quantize_linear(ONES, "int8", 32, shares(40))),
    ("up", ValueError, lambda b: b.quantize_expert(ONES, ONES[:2], ONES.T.copy(), "int8", 32)),
    ("up", TypeError, lambda b: b.quantize_expert(ONES, ONES.astype(np.float16), ONES.T.copy(), "int8", 32)),
    ("down", ValueError, lambda b: b.quantize_expert(ONES, ONES, weight_with(np.nan).T.copy(), "int8", 32)),
    (
        "importance[1]",
        ValueError,
        lambda b: b.quantize_expert(ONES, ONES, ONES.T.copy(), "int4", 32, (None, shares(40))),
    ),
    ("experts", ValueError, units({}, {"dtype": "int4", "data": np.zeros(1, np.uint8)})),
    ("experts", ValueError, units({"group": 0})),
    ("expert", ValueError, units({"group": 64, "ffn": 30})),
    (
        "weight",
        ValueError,
        lambda b: b.linear(ONES, replace(b.pack_linear(ONES, ComputeMode.FP32), group=32)),
    ),
    (
        "weight",
        ValueError,
        lambda b: b.linear(ONES, replace(b.quantize_linear(ONES, "int8", 32), data=np.zeros(64, np.uint8))),
    ),
    ("weight", ValueError, lambda b: b.gate(ONES, b.quantize_linear(ONES, "int8", 32), 2)),
]


@pytest.mark.parametrize(
    ("name", "error", "call"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)]
)
def test_error_names_the_argument(backend: Backend, name: str, error: type[Exception], call: Call) -> None:
    with pytest.raises(error) as caught:
        call(backend)
    message = str(caught.value)
    assert message.startswith(name), message
    assert "expected" in message, message
    assert "got" in message, message


def test_mixed_experts_are_refused(backend: Backend) -> None:
    down = np.ascontiguousarray(ONES.T)
    batch, _ = unit_batch(np.arange(2, dtype=np.uint16)[None], np.ones((1, 2), np.float32), folded=True)
    for other in (("int4", 32), ("int8", 64)):
        experts = [backend.quantize_expert(ONES, ONES, down, *f) for f in (("int8", 32), other)]
        with pytest.raises(ValueError, match=r"experts\[1\].*expected.*got.*int"):
            backend.expert_units(ONES[:1], experts, batch)
