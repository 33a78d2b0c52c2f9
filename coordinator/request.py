"""A request as the engine takes it: complete, checked, immutable."""

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
    """A request. Made by colibri.coordinator.validation.requests.

    prompt_ids: uint32.
    resumed_ids: uint32, generated before; they belong to the answer, and its last receipt is `receipt`.
    max_tokens: of the whole answer, resumed ids included.
    sampling: its seed is set, drawn or given; its choice is the number of the first of `n` choices.
    stop_ids: every id that ends the answer, the checkpoint's own included unless they are ignored; not before
        min_tokens.
    stop: strings that end the answer; not before min_tokens.
    priority: larger ones are admitted first.
    logprobs: how many of the likeliest come with each token; None: none.
    echo: send the prompt, with prompt_text.
    owner: who asked; ids are separate for each owner.
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
        """Positions that the cache must hold for one choice."""
        return len(self.prompt_ids) + self.max_tokens

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's log-probabilities are wanted and exist."""
        return (
            self.echo and self.logprobs is not None and len(self.prompt_ids) > 1 and not len(self.resumed_ids)
        )

    def sampling_of(self, choice_index: int) -> SamplingParams:
        """Returns the sampling of choice `choice_index` of this request, from 0."""
        return replace(self.sampling, choice=self.sampling.choice + choice_index)

    def context_tail(self) -> list[int]:
        """Returns the prompt's last few ids, which the answer's text is decoded with."""
        tail: list[int] = self.prompt_ids[-_TAIL:].tolist()
        return tail

    def resumed_end(self, stopped: str | None, numerics_id: str) -> Finished | None:
        """Returns the end of an answer that was complete when it was resumed, or None. stopped: the stop string that
        ended it.
        """
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
