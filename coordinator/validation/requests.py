"""Turn Generate's protobuf message into a GenerationRequest: check every field before anything large is allocated.

Errors name the field as the message spells it, what was expected and what it got.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from colibri.coordinator.prompts import PromptEncoder
from colibri.coordinator.request import GenerationRequest
from colibri.coordinator.validation import sampling as sampling_fields
from colibri.coordinator.validation import stopping as stopping_fields
from colibri.deadline import Deadline
from colibri.errors import InvalidInput
from colibri.models.chat_renderer import ChatRenderer
from colibri.models.generation_config import GenerationDefaults
from colibri.models.tokenizer import Tokenizer
from colibri.v1 import generation_pb2 as pb

MAX_PRIORITY = 1000
MAX_CHOICES = 16
MAX_LOGPROBS = 20
#: Of a Prompt message's ids and log-probabilities, beside at most 1 MiB of text: below gRPC's limit of 4 MiB.
_ECHO_BYTES = 3 << 20
#: Largest encodings of an id with its log-probability, and of one of the likeliest.
_SCORED_TOKEN_BYTES, _LIKELY_BYTES = 24, 9

_REQUEST_ID = re.compile(r"[!-~]{0,128}")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """vocab: ids are below it. context: most tokens of prompt and answer. defaults: of the checkpoint."""

    vocab: int
    context: int
    defaults: GenerationDefaults


@dataclass(frozen=True, slots=True)
class Draws:
    """Randomness: a seed of 64 bits, and a request id that no other request has."""

    seed: Callable[[], int]
    request_id: Callable[[], str]


def to_request(
    message: pb.GenerateRequest,
    limits: RequestLimits,
    tokenizer: Tokenizer | None,
    deadline: Deadline,
    draws: Draws,
    chat: ChatRenderer | None = None,
) -> GenerationRequest:
    """Returns the request, with unset fields filled from the checkpoint's defaults.

    Raises InvalidInput, and DeadlineExpired if rendering a chat outlasted the deadline.
    """
    check_request_id(message.request_id)
    if message.priority > MAX_PRIORITY:
        raise InvalidInput("priority", f"0 to {MAX_PRIORITY}", message.priority)
    n = message.n or 1
    if n > MAX_CHOICES:
        raise InvalidInput("n", f"1 to {MAX_CHOICES}, or 0 for 1", n)
    if message.logprobs > MAX_LOGPROBS:
        raise InvalidInput("logprobs", f"0 to {MAX_LOGPROBS}", message.logprobs)
    stopping, resume, defaults, vocab = message.stopping, message.resume, limits.defaults, limits.vocab
    choice = stopping_fields.choice(resume, n, MAX_CHOICES)
    sampling = sampling_fields.sampling_params(
        message.sampling,
        defaults,
        vocab,
        draws.seed,
        choice=choice,
        resuming=bool(resume.generated_ids) or choice > 0,
    )
    penalties = sampling_fields.penalties(message.sampling, defaults)
    stop_ids = stopping_fields.stop_ids(stopping, defaults, vocab)
    stop = stopping_fields.stop_strings(stopping, has_tokenizer=tokenizer is not None)
    prompt = PromptEncoder(vocab, tokenizer, chat).prompt(message, limits.context - 1, deadline)
    if message.echo and message.HasField("logprobs"):
        _check_echo(len(prompt.ids), message.logprobs)
    max_tokens = stopping_fields.max_tokens(stopping, defaults, limits.context, len(prompt.ids))
    min_tokens = stopping_fields.min_tokens(stopping, max_tokens)
    return GenerationRequest(
        request_id=message.request_id or draws.request_id(),
        prompt_ids=prompt.ids,
        sampling=sampling,
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        resumed_ids=stopping_fields.resumed_ids(resume, vocab, max_tokens, min_tokens, stop_ids),
        receipt=resume.receipt,
        priority=message.priority,
        deadline=deadline,
        n=n,
        penalties=penalties,
        stop=stop,
        min_tokens=min_tokens,
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        echo=message.echo,
        prompt_text=prompt.text,
    )


def _check_echo(prompt: int, logprobs: int) -> None:
    """Checks that an echoed prompt fits one message. Its log-probabilities are kept until it is computed."""
    most = _ECHO_BYTES // (_SCORED_TOKEN_BYTES + logprobs * _LIKELY_BYTES)
    if prompt > most:
        raise InvalidInput(
            "echo", f"at most {most} tokens of prompt with logprobs {logprobs}", f"{prompt} tokens of prompt"
        )


def check_request_id(request_id: str, *, required: bool = False) -> None:
    """Raises InvalidInput for an id that no request can have."""
    if not _REQUEST_ID.fullmatch(request_id) or (required and not request_id):
        expected = f"{1 if required else 0} to 128 printable ASCII characters without spaces"
        raise InvalidInput("request_id", expected, repr(request_id))
