"""What a Generate call answers with, the same at both ends of the wire and inside one process."""

from __future__ import annotations

import enum
from dataclasses import dataclass


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
    """An earlier answer to go on with: all its ids so far and its last receipt."""

    generated_ids: tuple[int, ...]
    receipt: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is valid and queued. `seed`: the one given, or the one drawn for it."""

    request_id: str
    prompt_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """New tokens, not cumulative; one receipt each. `text`: what became complete with them.

    The text of special tokens, of the id that ended the answer and of a character that is not complete yet
    is left out. A reader that lags behind gets several tokens at once.
    """

    ids: tuple[int, ...]
    receipts: tuple[int, ...]
    text: str = ""
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of an answer. `stop_id`: the id that ended it (STOP only); `receipt`: the last one, 0
    without tokens.
    """

    reason: FinishReason
    stop_id: int | None
    usage: Usage
    receipt: int
    seed: int
    engine_numerics_id: str = ""
    choice: int = 0


Event = Accepted | Tokens | Finished
