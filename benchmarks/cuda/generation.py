"""A random Mixtral in the kernels' own terms, generating: through one worker and through two, the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import Backend, ComputeMode, KvView, PackedExpert, PackedLinear, SamplingParams
from colibri.kernels.reference import ReferenceBackend
from tests.conformance.kernels.support import stored, unit_batch

Array = NDArray[Any]
_HIDDEN, _FFN, _HEADS, _KV_HEADS, _DIM, _VOCABULARY = 64, 96, 4, 2, 16, 160
_LAYERS, _EXPERTS, _TOP_K, _TOKENS = 2, 4, 2, 8
_MODE = ComputeMode.BF16


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: PackedLinear
    out: PackedLinear
    gate: PackedLinear
    experts: list[PackedExpert]


@dataclass(frozen=True, slots=True)
class _Model:
    embedding: PackedLinear
    layers: list[_Layer]


def check_generation(backend: Backend, rng: np.random.Generator) -> None:
    """Raises AssertionError where tokens or logits differ by how experts are spread or prompts are chunked."""
    model = _random_model(rng)
    prompt = rng.integers(0, _VOCABULARY, 9).astype(np.uint32)
    whole = _generate(backend, model, prompt, [set(range(_EXPERTS))], chunk=9)
    for workers, chunk in (([{0, 2}, {1, 3}], 9), ([{1}, {0, 2, 3}], 4)):
        other = _generate(backend, model, prompt, workers, chunk)
        assert other == whole, f"experts {workers} on two workers, chunks of {chunk}: other tokens or logits"


def _generate(
    backend: Backend, model: _Model, prompt: Array, workers: list[set[int]], chunk: int
) -> tuple[list[int], bytes]:
    """The tokens, and the last logits' bits."""
    rope = backend.rope_table(1e4, _DIM, 64)
    caches = [
        tuple(np.zeros((4, _KV_HEADS, 16, _DIM), dtype=np.uint16) for _ in range(2)) for _ in model.layers
    ]
    tokens: list[int] = []
    logits = np.zeros((0, _VOCABULARY), dtype=np.float32)
    fed = 0
    while len(tokens) < _TOKENS:
        ids = prompt[fed : fed + chunk] if fed < len(prompt) else np.array(tokens[-1:], dtype=np.uint32)
        positions = np.arange(fed, fed + len(ids), dtype=np.int32)
        fed += len(ids)
        x = backend.embed(model.embedding, ids)
        for layer, (k, v) in zip(model.layers, caches, strict=True):
            x = _layer(backend, layer, x, rope, KvView(k, v, *_pages(positions)), workers)
        if fed < len(prompt):
            continue
        normed = backend.rms_norm(x[-1:], np.ones(_HIDDEN, dtype=np.float32), 1e-5, _MODE)
        logits = backend.linear(normed, model.embedding)
        tokens.append(backend.sample(logits[0], SamplingParams(0.8, seed=3), len(tokens)))
    return tokens, logits.tobytes()


def _layer(
    backend: Backend, layer: _Layer, x: Array, rope: Any, kv: KvView, workers: list[set[int]]
) -> Array:
    ones = np.ones(_HIDDEN, dtype=np.float32)
    q = backend.rope_and_store(
        backend.linear(backend.rms_norm(x, ones, 1e-5, _MODE), layer.qkv), rope, kv, _HEADS
    )
    x = x.copy()
    backend.add_inplace(x, backend.linear(backend.attention(q, kv, None, _MODE), layer.out))
    normed = backend.rms_norm(x, ones, 1e-5, _MODE)
    gated = backend.gate(normed, layer.gate, _TOP_K)
    parts, where = [], []
    for number, mine in enumerate(workers):
        batch, units = unit_batch(gated.experts, gated.weights, folded=True, only=mine)
        parts.append(backend.expert_units(normed, [layer.experts[e] for e in batch.group_expert], batch))
        where += [(*members[0], number, unit) for unit, members in enumerate(units)]
    where.sort()
    rows = np.array([row for row, _, _, _ in where], dtype=np.int64)
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(x)))]).astype(np.uint32)
    part, index = (np.array([each[i] for each in where], dtype=np.uint32) for i in (2, 3))
    backend.add_inplace(x, backend.merge(parts, part, index, ends))
    return x


def _pages(positions: Array) -> tuple[Array, Array, Array]:
    return np.array([[2, 0, 3, 1]], dtype=np.int32), np.zeros(len(positions), dtype=np.int32), positions


def _random_model(rng: np.random.Generator) -> _Model:
    reference = ReferenceBackend()

    def matrix(n: int, k: int) -> Array:
        return stored(rng.standard_normal((n, k)) / np.sqrt(k), "bf16")

    def linear(n: int, k: int) -> PackedLinear:
        return reference.pack_linear(matrix(n, k), _MODE)

    layers = [
        _Layer(
            qkv=linear((_HEADS + 2 * _KV_HEADS) * _DIM, _HIDDEN),
            out=linear(_HIDDEN, _HEADS * _DIM),
            gate=linear(_EXPERTS, _HIDDEN),
            experts=[
                reference.pack_expert(
                    matrix(_FFN, _HIDDEN), matrix(_FFN, _HIDDEN), matrix(_HIDDEN, _FFN), _MODE
                )
                for _ in range(_EXPERTS)
            ],
        )
        for _ in range(_LAYERS)
    ]
    return _Model(linear(_VOCABULARY, _HIDDEN), layers)
