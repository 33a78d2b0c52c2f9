"""Mixtral's forward pass in plain float64 NumPy: no cache, no batching, no packing, none of the project's
kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.models.checkpoint import Checkpoint
from colibri.models.dtypes import fp32_from_stored

F64 = NDArray[np.float64]


def mixtral_logits(checkpoint: Checkpoint, ids: list[int]) -> F64:
    """[len(ids), vocab]."""
    return mixtral_forward(checkpoint, ids)[0]


def mixtral_forward(checkpoint: Checkpoint, ids: list[int]) -> tuple[F64, float]:
    """Logits, and how clear the closest choice between the last expert taken and the first one left out
    was.
    """
    closest = np.inf
    config = checkpoint.config

    def wide(array: NDArray[Any]) -> F64:
        return fp32_from_stored(array, config.dtype).astype(np.float64)

    x = wide(checkpoint.embedding())[ids]
    for layer in range(config.layers):
        norms, weights = checkpoint.norms(layer), checkpoint.attention(layer)
        h = _norm(x, wide(norms.input), config.rms_eps)
        shape = (len(ids), -1, config.head_dim)
        q = _rope((h @ wide(weights.q).T).reshape(shape), config.rope_theta)
        k = _rope((h @ wide(weights.k).T).reshape(shape), config.rope_theta)
        v = (h @ wide(weights.v).T).reshape(shape)
        x = x + _attend(q, k, v, config.sliding_window) @ wide(weights.o).T
        h = _norm(x, wide(norms.post), config.rms_eps)
        gate = h @ wide(checkpoint.gate(layer)).T
        for row in range(len(ids)):
            order = np.argsort(-gate[row], kind="stable")
            chosen = order[: config.top_k]
            if config.top_k < config.experts:
                closest = min(closest, gate[row, chosen[-1]] - gate[row, order[config.top_k]])
            for expert, share in zip(chosen, _softmax(gate[row, chosen]), strict=True):
                w = checkpoint.expert(layer, int(expert))
                g = wide(w.gate) @ h[row]
                x[row] += share * (wide(w.down) @ (g / (1 + np.exp(-g)) * (wide(w.up) @ h[row])))
    return _norm(x, wide(checkpoint.final_norm()), config.rms_eps) @ wide(checkpoint.lm_head()).T, closest


def _norm(x: F64, weight: F64, eps: float) -> F64:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight)


def _softmax(x: F64) -> F64:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def _rope(x: F64, theta: float) -> F64:
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _attend(q: F64, k: F64, v: F64, window: int | None) -> F64:
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
    distance = np.arange(rows)[:, None] - np.arange(rows)[None]
    hidden = (distance < 0) | (distance >= (window or rows))
    scores[:, hidden] = -np.inf
    return np.asarray(np.einsum("hqk,khd->qhd", _softmax(scores), v).reshape(rows, heads * dim))
