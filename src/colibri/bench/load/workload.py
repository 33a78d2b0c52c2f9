"""What is asked: a seeded sequence of requests, each a function of (seed, its number) alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from colibri.bench.load.lengths import Lengths
from colibri.bench.load.prompts import Prompts
from colibri.errors import ConfigError

#: Prompt and answer, in tokens, of request `variant`.
Shape = Callable[[int, np.random.Generator], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """Sent as it is, so that no default of a server decides. temperature 0: greedy; top_k 0: off."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """variant: its number among the workload's distinct requests; prompt_text: the prompt as text, for
    targets that take no ids. With ignore_eos exactly `max_tokens` tokens come back."""

    variant: int
    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingSpec
    seed: int
    ignore_eos: bool = True
    prompt_text: str | None = None


class Workload:
    """Requests by number.

    distinct: they repeat after this many, which bounds what an oracle must compute; None: all differ.
    """

    def __init__(
        self,
        prompts: Prompts,
        shape: Shape,
        *,
        seed: int,
        distinct: int | None = None,
        sampling: SamplingSpec | None = None,
        ignore_eos: bool = True,
        spell: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        if distinct is not None and distinct < 1:
            raise ConfigError("distinct", "at least 1", distinct)
        self.seed = seed
        self.distinct = distinct
        self._prompts = prompts
        self._shape = shape
        self._sampling = sampling or SamplingSpec()
        self._ignore_eos = ignore_eos
        self._spell = spell
        self._made: dict[int, LoadRequest] = {}

    def request(self, index: int) -> LoadRequest:
        """Returns request number `index` of a run. Another version of NumPy may draw differently."""
        if self.distinct is None:
            return self._make(index)
        variant = index % self.distinct
        if variant not in self._made:
            self._made[variant] = self._make(variant)
        return self._made[variant]

    def _make(self, variant: int) -> LoadRequest:
        rng = np.random.default_rng([self.seed, variant])
        prompt_length, max_tokens = self._shape(variant, rng)
        ids = self._prompts.ids(prompt_length, rng)
        return LoadRequest(
            variant=variant,
            prompt_ids=ids,
            max_tokens=max_tokens,
            sampling=self._sampling,
            seed=int(rng.integers(0, 1 << 63)),
            ignore_eos=self._ignore_eos,
            prompt_text=None if self._spell is None else self._spell(ids),
        )


def drawn(prompt: Lengths, output: Lengths) -> Shape:
    """Lengths of each request from two distributions."""
    return lambda variant, rng: (prompt.draw(rng), output.draw(rng))
