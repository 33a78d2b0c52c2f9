"""What a Generate call asks for and answers with, the same at both ends of the wire and inside one process.

Fields that are None take the checkpoint's default; ranges are in generation.proto, and the server judges
them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """`role`: as the checkpoint's template knows it (system, user, assistant)."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A prompt that the checkpoint's own chat template renders."""

    messages: tuple[ChatMessage, ...]
    add_generation_prompt: bool = True


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How tokens are chosen. Penalties act on the logits that choose, never on log-probabilities or
    receipts.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class FinishReason(enum.Enum):
    """Why an answer ended. `value` is the number in generation.proto."""

    STOP = 1
    LENGTH = 2
    ABORT = 3


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the prompt and of the whole answer (resumed tokens included)."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Resume:
    """An earlier answer to go on with: all its ids so far, its last receipt (0 without ids) and which choice
    of that request it was. An answer that was complete gets its Finished at once.
    """

    generated_ids: tuple[int, ...]
    receipt: int
    choice: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms from the raw logits. `top`: (id, log-probability) of the likeliest, largest first,
    ties to the lower id; as many as were asked for.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is valid and queued. `seed`: the one given, or the one drawn for it."""

    request_id: str
    prompt_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt as it was computed (echo), before the first Tokens; a resumed answer does not repeat it.

    `text` encodes to `ids`. `logprobs`: one per id when asked for, None for the first.
    """

    ids: tuple[int, ...]
    text: str = ""
    logprobs: tuple[TokenLogprobs | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens of one choice, not cumulative; one receipt each, and one TokenLogprobs each when asked for.

    `text`: what became complete with them. A character, a glyph of several characters and what may become a
    stop string are held back until they are whole; the ids that end an answer and special ones have no text.
    Text that was held back when its answer ended comes in a last event without ids: a resumed answer says it
    again. A reader that lags behind gets several tokens at once.
    """

    ids: tuple[int, ...]
    receipts: tuple[int, ...]
    text: str = ""
    choice: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a choice; a request of n choices brings n.

    `stop_id` or `stop_string`: what ended it (STOP only, one of the two); `receipt`: the last one, 0 without
    tokens.
    """

    reason: FinishReason
    stop_id: int | None
    usage: Usage
    receipt: int
    seed: int
    engine_numerics_id: str = ""
    choice: int = 0
    stop_string: str | None = None


Event = Accepted | Prompt | Tokens | Finished
