"""Change the logits that a token is chosen from: penalties and the least length (docs/numerics.md, sampling).

Only elementwise fp32 operations, each rounded as IEEE says: the same bits on every machine. Receipts and
log-probabilities use the unchanged logits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import F32, U32


@dataclass(frozen=True, slots=True)
class Penalties:
    """repetition: for tokens of prompt and answer, 1 = off. presence, frequency: for tokens of the answer, 0 = off."""

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    @property
    def off(self) -> bool:
        return self.repetition == 1 and self.presence == 0 and self.frequency == 0


def penalised(logits: F32, penalties: Penalties, in_context: U32, in_answer: U32, counts: F32) -> F32:
    """Returns a changed copy of logits [vocab].

    in_context: distinct ids of prompt and answer.
    in_answer: distinct ids of the answer.
    counts: [len(in_answer)], how often each came, above 0.
    """
    out = logits.copy()
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if penalties.repetition != 1:
            repetition, values = np.float32(penalties.repetition), out[in_context]
            out[in_context] = np.where(values > 0, values / repetition, values * repetition)
        if penalties.frequency != 0:
            out[in_answer] -= np.float32(penalties.frequency) * counts
        if penalties.presence != 0:
            out[in_answer] -= np.float32(penalties.presence)
    return out


def without(logits: F32, ids: NDArray[np.intp]) -> F32:
    """Returns a copy in which `ids` cannot be chosen. NaN and +Inf stay, for the sampler to refuse."""
    out = logits.copy()
    values = out[ids]
    out[ids] = np.where(values < np.inf, np.float32(-np.inf), values)
    return out


class LogitShaper:
    """The tokens of one choice so far, and their effect on its next logits. A resumed answer starts with its earlier
    tokens.
    """

    def __init__(
        self,
        vocab: int,
        penalties: Penalties,
        prompt: U32,
        answer: U32,
        min_tokens: int,
        stop_ids: Iterable[int],
    ) -> None:
        self._penalties = penalties
        self._min_tokens = min_tokens
        self._stop_ids = np.array(sorted(stop_ids), dtype=np.intp)
        self._generated = len(answer)
        self._seen = np.zeros(vocab, dtype=np.bool_)
        self._counts = np.zeros(vocab, dtype=np.float32)
        self._seen[prompt] = True
        self._seen[answer] = True
        np.add.at(self._counts, answer, np.float32(1))
        self._in_context = np.flatnonzero(self._seen).astype(np.uint32)
        self._in_answer = np.flatnonzero(self._counts).astype(np.uint32)

    def saw(self, token: int) -> None:
        """Counts a token of the answer."""
        self._generated += 1
        if self._counts[token] == 0:
            self._in_answer = np.append(self._in_answer, np.uint32(token))
        if not self._seen[token]:
            self._seen[token] = True
            self._in_context = np.append(self._in_context, np.uint32(token))
        self._counts[token] += np.float32(1)

    def shaped(self, logits: F32) -> F32:
        """Returns the logits that the next token is chosen from; `logits` do not change."""
        if not self._penalties.off:
            logits = penalised(
                logits, self._penalties, self._in_context, self._in_answer, self._counts[self._in_answer]
            )
        if self._generated < self._min_tokens and len(self._stop_ids):
            logits = without(logits, self._stop_ids)
        return logits
