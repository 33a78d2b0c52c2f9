"""Bad arguments: an error that names the argument, on every backend, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from colibri.kernels.api import Backend, ComputeMode, KvView, PackedLinear, SamplingParams, UnitBatch

F32 = ComputeMode.FP32


def f32(*shape: int) -> Any:
    return np.ones(shape, dtype=np.float32)


def u32(*values: int) -> Any:
    return np.array(values, dtype=np.uint32)


def i32(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


def kv_view(**changes: Any) -> KvView:
    """Two sequences, four pages of eight, one head of two; two rows."""
    good = KvView(
        k=f32(4, 1, 8, 2),
        v=f32(4, 1, 8, 2),
        page_table=np.array([[0, 1], [2, -1]], dtype=np.int32),
        row_sequence=i32(0, 1),
        positions=i32(9, 3),
    )
    return replace(good, **changes)


def unit_batch(**changes: Any) -> UnitBatch:
    """Two rows, experts 1 and 5; row 0 folded over both, row 1 one slot."""
    good = UnitBatch(
        group_expert=u32(1, 5),
        group_count=u32(2, 1),
        entry_row=u32(0, 1, 0),
        entry_slot=u32(0, 2, 1),
        entry_unit=u32(0, 1, 0),
        entry_weight=f32(3),
        unit_slots=u32(2, 1),
    )
    return replace(good, **changes)


Call = Callable[[Backend], Any]


def linear(x: Any, weight: Any = None) -> Call:
    return lambda b: b.linear(x, weight or b.pack_linear(f32(3, 4), F32))


def embed(*ids: int) -> Call:
    return lambda b: b.embed(b.pack_linear(f32(3, 4), F32), u32(*ids))


def rope(kv: KvView, qkv: Any = None, heads: int = 1, positions: int = 16) -> Call:
    return lambda b: b.rope_and_store(
        f32(2, 6) if qkv is None else qkv, b.rope_table(1e4, 2, positions), kv, heads
    )


def attention(kv: KvView, q: Any = None, window: int | None = None) -> Call:
    return lambda b: b.attention(f32(2, 2) if q is None else q, kv, window, F32)


def gate(x: Any, k: int) -> Call:
    return lambda b: b.gate(x, b.pack_linear(f32(3, 4), F32), k)


def units(batch: UnitBatch, x: Any = None, experts: int = 2) -> Call:
    def call(b: Backend) -> Any:
        expert = b.pack_expert(f32(3, 4), f32(3, 4), f32(4, 3), F32)
        return b.expert_units(f32(2, 4) if x is None else x, [expert] * experts, batch)

    return call


def merge(part: Any, index: Any, offsets: Any, parts: Any = None) -> Call:
    return lambda b: b.merge([f32(2, 4), f32(1, 4)] if parts is None else parts, part, index, offsets)


def sample(params: SamplingParams, logits: Any = None, index: int = 0) -> Call:
    return lambda b: b.sample(f32(5) if logits is None else logits, params, index)


CASES: list[tuple[str, type[Exception], Call]] = [
    ("x", TypeError, linear(np.ones((2, 4)))),
    ("x", TypeError, linear(np.ones((2, 4), dtype=np.uint16))),
    ("x", ValueError, linear(f32(2, 5))),
    ("x", ValueError, linear(f32(2, 8)[:, ::2])),
    ("weight", ValueError, linear(f32(2, 4), PackedLinear("fp32", 3, 4, np.zeros(64, dtype=np.uint8)))),
    ("weight", TypeError, lambda b: b.pack_linear(np.ones((3, 4)), F32)),
    ("weight", ValueError, lambda b: b.pack_linear(f32(4), F32)),
    ("up", ValueError, lambda b: b.pack_expert(f32(3, 4), f32(4, 4), f32(4, 3), F32)),
    ("up", TypeError, lambda b: b.pack_expert(f32(3, 4), np.ones((3, 4), np.float16), f32(4, 3), F32)),
    ("down", ValueError, lambda b: b.pack_expert(f32(3, 4), f32(3, 4), f32(3, 4), F32)),
    ("ids", ValueError, embed(0, 3)),
    ("ids", TypeError, lambda b: b.embed(b.pack_linear(f32(3, 4), F32), i32(0))),
    ("weight", ValueError, lambda b: b.rms_norm(f32(2, 4), f32(3), 1e-5, F32)),
    ("eps", ValueError, lambda b: b.rms_norm(f32(2, 4), f32(4), -1.0, F32)),
    ("eps", ValueError, lambda b: b.rms_norm(f32(2, 4), f32(4), float("nan"), F32)),
    ("mode", TypeError, lambda b: b.rms_norm(f32(2, 4), f32(4), 1e-5, "fp32")),  # type: ignore[arg-type]
    ("y", ValueError, lambda b: b.add_inplace(f32(2, 4), f32(2, 3))),
    ("theta", ValueError, lambda b: b.rope_table(0.0, 4, 5)),
    ("head_dim", ValueError, lambda b: b.rope_table(1e4, 3, 5)),
    ("positions", ValueError, lambda b: b.rope_table(1e4, 4, -1)),
    ("heads", ValueError, rope(kv_view(), heads=0)),
    ("qkv", ValueError, rope(kv_view(), heads=2)),
    ("qkv", TypeError, rope(kv_view(), np.ones((2, 6)))),
    ("kv.positions", ValueError, rope(kv_view(), positions=9)),
    ("kv.positions", ValueError, rope(kv_view(positions=i32(16, 3)), positions=32)),
    ("kv.positions", ValueError, rope(kv_view(positions=i32(-1, 3)))),
    ("kv.positions", ValueError, rope(kv_view(row_sequence=i32(0, 0), positions=i32(3, 3)))),
    ("kv.page_table", ValueError, rope(kv_view(positions=i32(9, 8)))),
    ("kv.row_sequence", ValueError, attention(kv_view(row_sequence=i32(0, 2)))),
    ("kv.row_sequence", ValueError, attention(kv_view(row_sequence=i32(-1, 0)))),
    ("kv.row_sequence", TypeError, attention(kv_view(row_sequence=u32(0, 1)))),
    ("kv.positions", ValueError, attention(kv_view(positions=i32(9)))),
    ("kv.positions", ValueError, attention(kv_view(positions=i32(9, 16)))),
    ("kv.page_table", ValueError, attention(kv_view(positions=i32(9, 8)))),
    ("kv.page_table", ValueError, attention(kv_view(page_table=np.array([[4, 1], [2, 3]], dtype=np.int32)))),
    ("kv.k", ValueError, attention(kv_view(k=f32(4, 1, 12, 2), v=f32(4, 1, 12, 2)))),
    ("kv.k", TypeError, attention(kv_view(k=np.ones((4, 1, 8, 2), dtype=np.float16)))),
    ("kv.k", ValueError, attention(kv_view(k=f32(4, 1, 8, 3), v=f32(4, 1, 8, 3)))),
    ("kv.v", ValueError, attention(kv_view(v=f32(3, 1, 8, 2)))),
    ("kv.v", TypeError, attention(kv_view(v=np.ones((4, 1, 8, 2), dtype=np.uint16)))),
    ("q", ValueError, attention(kv_view(), f32(2, 3))),
    ("q", ValueError, attention(kv_view(), f32(2, 0))),
    ("q", TypeError, attention(kv_view(), np.ones((2, 2)))),
    ("window", ValueError, attention(kv_view(), window=0)),
    ("x", ValueError, gate(f32(2, 5), 1)),
    ("k", ValueError, gate(f32(2, 4), 0)),
    ("k", ValueError, gate(f32(2, 4), 4)),
    ("keys", ValueError, lambda b: b.group(u32(0, 3), 3)),
    ("keys", TypeError, lambda b: b.group(i32(0), 3)),
    ("buckets", ValueError, lambda b: b.group(u32(), -1)),
    ("buckets", ValueError, lambda b: b.group(u32(), 2**24 + 1)),
    ("x", TypeError, units(unit_batch(), np.ones((2, 4)))),
    ("experts", ValueError, units(unit_batch(), f32(2, 5))),
    ("experts", ValueError, units(unit_batch(), np.ones((2, 4), dtype=np.uint16))),
    ("experts", ValueError, units(unit_batch(), experts=1)),
    ("batch.group_expert", ValueError, units(unit_batch(group_expert=u32(5, 1)))),
    ("batch.group_expert", ValueError, units(unit_batch(group_expert=u32(5, 5)))),
    ("batch.group_count", ValueError, units(unit_batch(group_count=u32(3, 1)))),
    ("batch.group_count", ValueError, units(unit_batch(group_count=u32(3, 0)))),
    ("batch.entry_row", ValueError, units(unit_batch(entry_row=u32(0, 2, 0)))),
    ("batch.entry_row", ValueError, units(unit_batch(entry_row=u32(0, 1, 1)))),
    ("batch.entry_slot", ValueError, units(unit_batch(entry_slot=u32(0, 16, 1)))),
    ("batch.entry", ValueError, units(unit_batch(entry_slot=u32(0, 2, 2)))),
    ("batch.entry", ValueError, units(unit_batch(entry_slot=u32(0, 2, 0)))),
    ("batch.entry_unit", ValueError, units(unit_batch(entry_unit=u32(0, 2, 0)))),
    ("batch.unit_slots", ValueError, units(unit_batch(unit_slots=u32(2, 2)))),
    ("batch.unit_slots", ValueError, units(unit_batch(unit_slots=u32(2, 1, 0)))),
    ("batch.entry_weight", TypeError, units(unit_batch(entry_weight=np.ones(3)))),
    ("parts", ValueError, merge(u32(), u32(), u32(0), [])),
    ("parts", ValueError, merge(u32(), u32(), u32(0), [f32(2, 4), f32(2, 3)])),
    ("parts", TypeError, merge(u32(), u32(), u32(0), [np.ones((2, 4))])),
    ("part", ValueError, merge(u32(2), u32(0), u32(0, 1))),
    ("index", ValueError, merge(u32(1), u32(1), u32(0, 1))),
    ("index", ValueError, merge(u32(1), u32(0, 0), u32(0, 1))),
    ("row_offsets", ValueError, merge(u32(0), u32(0), u32(0, 2))),
    ("row_offsets", ValueError, merge(u32(0), u32(0), u32(1, 1))),
    ("row_offsets", ValueError, merge(u32(0, 0), u32(0, 0), u32(0, 3, 2))),
    ("row_offsets", ValueError, merge(u32(), u32(), u32())),
    ("logits", ValueError, sample(SamplingParams(), f32(0))),
    ("logits", TypeError, sample(SamplingParams(), np.ones(5))),
    ("params.temperature", ValueError, sample(SamplingParams(-1.0))),
    ("params.temperature", ValueError, sample(SamplingParams(float("nan")))),
    ("params.temperature", ValueError, sample(SamplingParams(float("inf")))),
    ("params.temperature", ValueError, sample(SamplingParams(1e-40))),
    ("params.top_k", ValueError, sample(SamplingParams(1.0, -1))),
    ("params.top_p", ValueError, sample(SamplingParams(1.0, 0, 0.0))),
    ("params.top_p", ValueError, sample(SamplingParams(1.0, 0, 1.5))),
    ("params.seed", ValueError, sample(SamplingParams(1.0, seed=2**64))),
    ("params.seed", ValueError, sample(SamplingParams(1.0, seed=-1))),
    ("params.choice", ValueError, sample(SamplingParams(1.0, choice=2**32))),
    ("output_index", ValueError, sample(SamplingParams(1.0), index=-1)),
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


def test_a_closed_backend_refuses() -> None:
    from colibri.kernels.factory import make_backend

    backend = make_backend("cpu", threads=2)
    backend.close()
    with pytest.raises(RuntimeError, match="closed"):
        backend.group(u32(), 1)


def test_nothing_is_written_when_a_page_is_missing(backend: Backend) -> None:
    kv = kv_view(positions=i32(9, 8))
    with pytest.raises(ValueError):
        rope(kv)(backend)
    assert (kv.k == 1).all()
    assert (kv.v == 1).all()
