"""Generate's protobuf message to a GenerationRequest: every field checked, nothing large allocated before
that.

Errors name the field as the message spells it, what was expected and what came.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from colibri.coordinator.request import GenerationRequest
from colibri.deadline import Deadline
from colibri.errors import InvalidInput
from colibri.kernels.api import U32, SamplingParams
from colibri.models.generation_config import GenerationDefaults
from colibri.models.tokenizer import Tokenizer
from colibri.v1 import generation_pb2 as pb

MAX_TEXT_BYTES = 1 << 20
MAX_STOP_IDS = 64
MAX_PRIORITY = 1000
DEFAULT_MAX_TOKENS = 1024
MAX_TEMPERATURE = 100.0
#: Below it logit / temperature could overflow.
MIN_TEMPERATURE = 1e-6

_REQUEST_ID = re.compile(r"[!-~]{0,128}")


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """vocab: ids are below it; context: longest prompt plus answer, in tokens; defaults: of the
    checkpoint.
    """

    vocab: int
    context: int
    defaults: GenerationDefaults


@dataclass(frozen=True, slots=True)
class Draws:
    """Randomness: a seed of 64 bits, a request id that no other request has."""

    seed: Callable[[], int]
    request_id: Callable[[], str]


def to_request(
    message: pb.GenerateRequest,
    limits: RequestLimits,
    tokenizer: Tokenizer | None,
    deadline: Deadline,
    draws: Draws,
) -> GenerationRequest:
    """The request that the message asks for, unset fields filled from the checkpoint's defaults. Raises
    InvalidInput.
    """
    check_request_id(message.request_id)
    if message.priority > MAX_PRIORITY:
        raise InvalidInput("priority", f"0 to {MAX_PRIORITY}", message.priority)
    prompt = _prompt(message, limits, tokenizer)
    stop_ids = _stop_ids(message.stopping, limits)
    max_tokens = _max_tokens(message.stopping, limits, len(prompt))
    resumed = _resumed(message.resume, limits, max_tokens, stop_ids)
    return GenerationRequest(
        request_id=message.request_id or draws.request_id(),
        prompt_ids=prompt,
        sampling=_sampling(message.sampling, limits, draws, resuming=len(resumed) > 0),
        max_tokens=max_tokens,
        stop_ids=stop_ids,
        resumed_ids=resumed,
        receipt=message.resume.receipt,
        priority=message.priority,
        deadline=deadline,
    )


def check_request_id(request_id: str, *, required: bool = False) -> None:
    """Raises InvalidInput for an id that no request can have."""
    if not _REQUEST_ID.fullmatch(request_id) or (required and not request_id):
        expected = f"{1 if required else 0} to 128 printable ASCII characters without spaces"
        raise InvalidInput("request_id", expected, repr(request_id))


def _prompt(message: pb.GenerateRequest, limits: RequestLimits, tokenizer: Tokenizer | None) -> U32:
    kind = message.WhichOneof("prompt")
    if kind == "token_ids":
        ids = _ids("token_ids.ids", message.token_ids.ids, limits.vocab, limits.context - 1)
    elif kind == "text":
        if tokenizer is None:
            raise InvalidInput("prompt", "token_ids, since this model has no tokenizer", "text")
        size = len(message.text.encode())
        if size > MAX_TEXT_BYTES:
            raise InvalidInput("text", f"at most {MAX_TEXT_BYTES} bytes", f"{size} bytes")
        ids = _ids("text", tokenizer.encode(message.text), limits.vocab, limits.context - 1)
    else:
        raise InvalidInput("prompt", "text or token_ids", "neither")
    if not len(ids):
        raise InvalidInput("token_ids.ids" if kind == "token_ids" else "text", "at least one token", "none")
    return ids


def _ids(field: str, ids: Iterable[int], vocab: int, most: int) -> U32:
    ids = list(ids)
    if len(ids) > most:
        raise InvalidInput(
            field, f"at most {most} tokens (the context holds {most + 1})", f"{len(ids)} tokens"
        )
    array = np.array(ids, dtype=np.uint32)
    wrong = np.flatnonzero(array >= vocab)
    if len(wrong):
        raise InvalidInput(f"{field}[{wrong[0]}]", f"a token id from 0 to {vocab - 1}", int(array[wrong[0]]))
    return array


def _max_tokens(stopping: pb.Stopping, limits: RequestLimits, prompt: int) -> int:
    left = limits.context - prompt
    if not stopping.HasField("max_tokens"):
        return min(left, limits.defaults.max_new_tokens or DEFAULT_MAX_TOKENS)
    if not 1 <= stopping.max_tokens <= left:
        raise InvalidInput(
            "stopping.max_tokens",
            f"1 to {left} (context {limits.context} less {prompt} tokens of prompt)",
            stopping.max_tokens,
        )
    return stopping.max_tokens


def _stop_ids(stopping: pb.Stopping, limits: RequestLimits) -> frozenset[int]:
    if len(stopping.stop_ids) > MAX_STOP_IDS:
        raise InvalidInput(
            "stopping.stop_ids", f"at most {MAX_STOP_IDS} ids", f"{len(stopping.stop_ids)} ids"
        )
    own = _ids("stopping.stop_ids", stopping.stop_ids, limits.vocab, MAX_STOP_IDS).tolist()
    return frozenset(own if stopping.ignore_eos else [*own, *limits.defaults.eos])


def _sampling(
    sampling: pb.Sampling, limits: RequestLimits, draws: Draws, *, resuming: bool
) -> SamplingParams:
    defaults = limits.defaults
    temperature = sampling.temperature if sampling.HasField("temperature") else defaults.temperature
    if temperature != 0 and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:
        raise InvalidInput(
            "sampling.temperature", f"0, or {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}", temperature
        )
    top_p = sampling.top_p if sampling.HasField("top_p") else defaults.top_p
    if not 0 < top_p <= 1:
        raise InvalidInput("sampling.top_p", "above 0, at most 1", top_p)
    # A checkpoint's top_k may exceed a small vocabulary, where it means all of it; a client's is a mistake.
    top_k = sampling.top_k if sampling.HasField("top_k") else min(defaults.top_k, limits.vocab)
    if top_k > limits.vocab:
        raise InvalidInput("sampling.top_k", f"0 to {limits.vocab} (the vocabulary)", top_k)
    if resuming and temperature > 0 and not sampling.HasField("seed"):
        raise InvalidInput("sampling.seed", "the seed of the answer that is resumed", "none")
    seed = sampling.seed if sampling.HasField("seed") else draws.seed()
    return SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)


def _resumed(resume: pb.Resume, limits: RequestLimits, max_tokens: int, stop_ids: frozenset[int]) -> U32:
    field = "resume.generated_ids"
    if not resume.generated_ids:
        if resume.receipt:
            raise InvalidInput("resume.receipt", "0 without generated_ids", resume.receipt)
        return np.empty(0, dtype=np.uint32)
    if len(resume.generated_ids) >= max_tokens:
        raise InvalidInput(
            field,
            f"fewer than max_tokens ({max_tokens}, which counts the whole answer)",
            len(resume.generated_ids),
        )
    ids = _ids(field, resume.generated_ids, limits.vocab, limits.context)
    for at, token in enumerate(ids.tolist()):
        if token in stop_ids:
            raise InvalidInput(f"{field}[{at}]", "no id that ends the answer", f"stop id {token}")
    return ids
