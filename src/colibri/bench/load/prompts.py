"""Where a prompt's token ids come from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np

from colibri.errors import ConfigError


class Prompts(Protocol):
    def ids(self, length: int, rng: np.random.Generator) -> tuple[int, ...]:
        """`length` token ids."""
        ...


class RandomIds:
    """Ids drawn evenly from a vocabulary, without the `excluded` ones (end of sequence)."""

    def __init__(self, vocab: int, excluded: Collection[int] = ()) -> None:
        self._allowed = np.setdiff1d(np.arange(vocab), np.fromiter(excluded, dtype=np.int64))
        if not len(self._allowed):
            raise ConfigError("vocabulary", "at least one id that is not excluded", vocab)

    def ids(self, length: int, rng: np.random.Generator) -> tuple[int, ...]:
        return tuple(self._allowed[rng.integers(0, len(self._allowed), length)].tolist())


class TextIds:
    """Windows of one tokenised text, each starting anywhere in it; the text goes round."""

    def __init__(self, ids: Sequence[int]) -> None:
        if not ids:
            raise ConfigError("text", "at least one token", "none")
        self._ids = np.array(ids, dtype=np.int64)

    def ids(self, length: int, rng: np.random.Generator) -> tuple[int, ...]:
        start = int(rng.integers(0, len(self._ids)))
        return tuple(np.take(self._ids, np.arange(start, start + length), mode="wrap").tolist())
