"""The options of a call of Generate, the same for all clients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypedDict

from colibri.client.retry import Retry
from colibri.generation import Chat, ChatMessage, Resume

#: A message as ChatMessage, or as {"role": ..., "content": ...}.
Message = ChatMessage | Mapping[str, str]
#: Text, token ids, or a chat.
PromptLike = str | Sequence[int] | Chat


class RequestOptions(TypedDict, total=False):
    """The fields of GenerateRequest besides its prompt.

    An option that is missing or None takes the checkpoint's default. generation.proto gives the ranges; the server
    checks them.

    temperature: 0 takes the likeliest token.
    top_p, top_k, min_p: which tokens may be sampled.
    seed: drawn and returned if missing.
    repetition_penalty, presence_penalty, frequency_penalty: applied to the logits that tokens are sampled from.
    max_tokens: of the whole answer, resumed ids included.
    min_tokens: the answer does not stop before.
    stop: strings that end the answer and are never shown.
    stop_ids: in addition to the checkpoint's own.
    ignore_eos: the checkpoint's own stop ids do not end the answer.
    n: number of choices.
    echo: the prompt comes first, as an event Prompt.
    logprobs: give log-probabilities of the chosen tokens and of this many of the likeliest.
    resume: an earlier answer to go on with.
    request_id: for Abort; no other running request may have it. Missing: the client makes one.
    priority: larger values are admitted first.
    """

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    max_tokens: int | None
    min_tokens: int | None
    stop: Sequence[str]
    stop_ids: Sequence[int]
    ignore_eos: bool
    n: int
    echo: bool
    logprobs: int | None
    resume: Resume | None
    request_id: str
    priority: int


#: Of one call: None as the client's, False nothing is asked again.
RetryChoice = Retry | Literal[False] | None


def as_chat(messages: Iterable[Message], *, add_generation_prompt: bool = True) -> Chat:
    """Makes a chat. Raises TypeError or KeyError for something that is not a message."""
    return Chat(
        tuple(
            message
            if isinstance(message, ChatMessage)
            else ChatMessage(role=message["role"], content=message["content"])
            for message in messages
        ),
        add_generation_prompt,
    )
