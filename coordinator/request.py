"""A request as the engine takes it: complete, validated, immutable."""

from __future__ import annotations

from dataclasses import dataclass

from colibri.deadline import Deadline
from colibri.kernels.api import U32, SamplingParams

_TAIL = 32


@dataclass(frozen=True, slots=True, eq=False)
class GenerationRequest:
    """Made by colibri.coordinator.validate.

    prompt_ids, resumed_ids: uint32; resumed_ids were generated before and belong to the answer, whose last
    receipt is `receipt`. max_tokens counts the whole answer, resumed ids included. sampling.seed is set,
    drawn or given. stop_ids: every id that ends the answer, the checkpoint's end-of-sequence ids included
    unless they are ignored. priority: larger ones are admitted first.
    """

    request_id: str
    prompt_ids: U32
    sampling: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int]
    resumed_ids: U32
    receipt: int
    priority: int
    deadline: Deadline

    @property
    def kv_tokens(self) -> int:
        """Positions the cache must hold for it."""
        return len(self.prompt_ids) + self.max_tokens

    def tail(self) -> list[int]:
        """The last few ids before the first new one: what its text is decoded with."""
        return [*self.prompt_ids[-_TAIL:].tolist(), *self.resumed_ids[-_TAIL:].tolist()]
