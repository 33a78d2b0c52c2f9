"""Measure how good a model's predictions are, alone and against another form of the same model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.coordinator.layerwise import Layerwise, Progress
from colibri.kernels.api import F32, Backend, ComputeMode, PackedExpert
from colibri.models.model import Model

F64 = NDArray[np.float64]
#: Rows whose log-probabilities are held in float64 at once.
_ROWS = 128


@dataclass(frozen=True, slots=True)
class Score:
    """perplexity: of the next tokens. The others are None without a base: kl, the mean over all positions of KL(base
        || this) in
    nats; its standard error; and the share of positions with the base's likeliest token.
    """

    perplexity: float
    tokens: int
    kl: float | None = None
    kl_error: float | None = None
    same_top: float | None = None


def predictions(
    model: Model,
    backend: Backend,
    mode: ComputeMode,
    passages: Sequence[Sequence[int]],
    progress: Progress = lambda done, total: None,
    *,
    experts: Callable[[int, int], PackedExpert] | None = None,
) -> list[F32]:
    """Returns the logits of each passage, fp32 [tokens, vocab]. experts: (layer, expert) -> what replaces the model's
    own.
    """
    run = Layerwise(model, backend, mode, passages, experts)
    return list(run.logits(run.run(progress=progress)))


def score(
    logits: Sequence[F32], passages: Sequence[Sequence[int]], base: Sequence[F32] | None = None
) -> Score:
    """Scores what `predictions` returned for the passages. base: what another form of the model gave for the same
    passages.
    """
    lost, tokens = 0.0, 0
    divergences: list[F64] = []
    same = 0
    for index, ids in enumerate(passages):
        for begin in range(0, len(ids), _ROWS):
            rows = slice(begin, min(begin + _ROWS, len(ids)))
            own = _log_softmax(logits[index][rows])
            following = np.asarray(ids[begin + 1 : rows.stop + 1])
            lost -= float(own[np.arange(len(following)), following].sum())
            tokens += len(following)
            if base is not None:
                other = _log_softmax(base[index][rows])
                divergences.append((np.exp(other) * (other - own)).sum(axis=1))
                same += int((own.argmax(axis=1) == other.argmax(axis=1)).sum())
    perplexity = math.exp(lost / tokens)
    if base is None:
        return Score(perplexity, tokens)
    all_rows = np.concatenate(divergences)
    error = float(all_rows.std()) / math.sqrt(len(all_rows))
    return Score(perplexity, tokens, float(all_rows.mean()), error, same / len(all_rows))


def repeated_share(ids: Sequence[int], n: int = 4) -> float:
    """Returns the share of a text's n-grams that occurred before in it. It grows when a model falls into loops."""
    grams = [tuple(ids[at : at + n]) for at in range(len(ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def _log_softmax(logits: F32) -> F64:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide
