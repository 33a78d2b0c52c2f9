"""A request as the engine takes it: complete, validated, immutable."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from colibri.coordinator.penalties import Penalties
from colibri.deadline import Deadline
from colibri.generation import Finished, FinishReason, Usage
from colibri.kernels.api import U32, SamplingParams

_TAIL = 32


@dataclass(frozen=True, slots=True, eq=False)
class GenerationRequest:
    """Made by colibri.coordinator.validation.requests.

    prompt_ids, resumed_ids: uint32; resumed_ids were generated before and belong to the answer, whose last
    receipt is `receipt`. max_tokens counts the whole answer, resumed ids included. sampling.seed is set, drawn
    or given; sampling.choice is the index of the first of `n` choices. stop_ids: every id that ends the answer,
    the checkpoint's end-of-sequence ids included unless they are ignored; stop: strings that do. Neither does
    before min_tokens. priority: larger ones are admitted first. logprobs: None, or how many of the likeliest
    come with each token. echo: the prompt is told, with prompt_text. owner: who asked; ids are each owner's own.
    """

    request_id: str
    prompt_ids: U32
    sampling: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    resumed_ids: U32 = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))
    receipt: int = 0
    priority: int = 0
    deadline: Deadline = Deadline()  # noqa: RUF009 - frozen
    n: int = 1
    penalties: Penalties = Penalties()  # noqa: RUF009 - frozen
    stop: tuple[str, ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    echo: bool = False
    prompt_text: str = ""
    owner: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What no other running request has."""
        return self.owner, self.request_id

    @property
    def kv_tokens(self) -> int:
        """Positions the cache must hold for one choice."""
        return len(self.prompt_ids) + self.max_tokens

    @property
    def scores_prompt(self) -> bool:
        """The prompt's log-probabilities are wanted, and there are any."""
        return (
            self.echo and self.logprobs is not None and len(self.prompt_ids) > 1 and not len(self.resumed_ids)
        )

    def sampling_of(self, choice_index: int) -> SamplingParams:
        """Of choice `choice_index` of this request, from 0."""
        return replace(self.sampling, choice=self.sampling.choice + choice_index)

    def context_tail(self) -> list[int]:
        """The prompt's last few ids: what the answer's text is decoded with."""
        tail: list[int] = self.prompt_ids[-_TAIL:].tolist()
        return tail

    def resumed_end(self, stopped: str | None, numerics_id: str) -> Finished | None:
        """The end of an answer that was complete when it was resumed. `stopped`: the stop string that ended it."""
        resumed = self.resumed_ids
        if not len(resumed):
            return None
        stop_id = int(resumed[-1]) if int(resumed[-1]) in self.stop_ids else None
        if stop_id is None and stopped is None and len(resumed) < self.max_tokens:
            return None
        return Finished(
            reason=FinishReason.LENGTH if stop_id is None and stopped is None else FinishReason.STOP,
            stop_id=stop_id,
            usage=Usage(len(self.prompt_ids), len(resumed)),
            receipt=self.receipt,
            seed=self.sampling.seed,
            engine_numerics_id=numerics_id,
            choice=self.sampling.choice,
            stop_string=stopped,
        )
