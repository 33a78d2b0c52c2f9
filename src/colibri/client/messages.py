"""Turn Python values into messages of generation.proto, and replies into values. Both clients share this."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from colibri.client.fields import fill
from colibri.client.options import Message, PromptLike, as_chat
from colibri.errors import FrameError, InvalidInput
from colibri.generation import (
    Accepted,
    Chat,
    Event,
    Finished,
    FinishReason,
    Prompt,
    Resume,
    SamplingOptions,
    TokenLogprobs,
    Tokens,
    Usage,
)
from colibri.v1 import generation_pb2 as pb


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a request gets for options that it leaves out.

    max_tokens: 0: the rest of the context, at most 1024.
    sources: field -> the file that it comes from.
    ignored: settings of the checkpoint that have no effect.
    """

    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    max_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server serves.

    max_positions: most tokens of prompt and answer together.
    workers: names of the live ones.
    content_digest: of every weight; empty if the server does not tell.
    """

    name: str
    model_hash: str
    compute_mode: str
    engine_numerics_id: str
    expert_numerics_id: str
    vocab: int
    max_positions: int
    layers: int
    experts: int
    top_k: int
    eos_ids: tuple[int, ...]
    workers: tuple[str, ...]
    epoch: int
    build_version: str
    has_tokenizer: bool
    has_chat_template: bool
    defaults: Defaults
    content_digest: str = ""


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The ids of a prompt. pieces: the text of each id by itself."""

    ids: tuple[int, ...]
    pieces: tuple[str, ...]


def to_request(
    prompt: PromptLike,
    *,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    stop: Sequence[str] = (),
    stop_ids: Sequence[int] = (),
    ignore_eos: bool = False,
    n: int = 1,
    echo: bool = False,
    logprobs: int | None = None,
    resume: Resume | None = None,
    request_id: str = "",
    priority: int = 0,
) -> pb.GenerateRequest:
    """Makes a request from the options of RequestOptions. Raises InvalidInput for values that fit no message."""
    request = pb.GenerateRequest()
    fill(
        request,
        {
            "request_id": request_id or uuid.uuid4().hex,
            "priority": priority,
            "n": n,
            "echo": echo,
            "logprobs": logprobs,
        },
    )
    sampling = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "seed": seed,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
    }
    fill(request.sampling, sampling, "sampling")
    request.sampling.SetInParent()
    stopping = {
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "stop": stop,
        "stop_ids": stop_ids,
        "ignore_eos": ignore_eos,
    }
    fill(request.stopping, stopping, "stopping")
    request.stopping.SetInParent()
    if isinstance(prompt, str):
        fill(request, {"text": prompt})
    elif isinstance(prompt, Chat):
        _put_chat(request.chat, prompt)
    else:
        fill(request.token_ids, {"ids": prompt}, "token_ids")
        request.token_ids.SetInParent()
    if resume is not None:
        if not isinstance(resume, Resume):
            raise InvalidInput("resume", "a Resume", repr(resume))
        resumed = {
            "generated_ids": resume.generated_ids,
            "receipt": resume.receipt,
            "choice": resume.choice,
        }
        fill(request.resume, resumed, "resume")
        request.resume.SetInParent()
    return request


def to_chat(messages: Sequence[Message]) -> Chat:
    """Makes a chat. Raises InvalidInput for something that is not a message."""
    try:
        return as_chat(messages)
    except (TypeError, KeyError, AttributeError) as error:
        raise InvalidInput(
            "messages", "ChatMessage, or objects with role and content", repr(error)
        ) from error


def to_tokenize(what: str | Chat | Sequence[Message], add_special: bool | None) -> pb.TokenizeRequest:
    """Raises InvalidInput."""
    request = pb.TokenizeRequest()
    fill(request, {"add_special": add_special})
    if isinstance(what, str):
        fill(request, {"text": what})
    else:
        _put_chat(request.chat, what if isinstance(what, Chat) else to_chat(what))
    return request


def to_detokenize(ids: Sequence[int], skip_special: bool) -> pb.DetokenizeRequest:
    """Raises InvalidInput."""
    request = pb.DetokenizeRequest()
    fill(request, {"ids": ids, "skip_special": skip_special})
    return request


def to_event(reply: pb.GenerateReply, target: str) -> Event:
    """Turns a reply into an event. Raises FrameError for a reply that no server of this version sends."""
    kind = reply.WhichOneof("event")
    if kind == "tokens":
        tokens = reply.tokens
        if len(tokens.receipts) != len(tokens.ids):
            raise _strange(target, f"{len(tokens.receipts)} receipts for {len(tokens.ids)} tokens")
        if len(tokens.logprobs) not in (0, len(tokens.ids)):
            raise _strange(target, f"{len(tokens.logprobs)} logprobs for {len(tokens.ids)} tokens")
        return Tokens(
            ids=tuple(tokens.ids),
            receipts=tuple(tokens.receipts),
            text=tokens.text,
            choice=tokens.choice,
            logprobs=tuple(_logprobs(each) for each in tokens.logprobs),
        )
    if kind == "accepted":
        return Accepted(reply.accepted.request_id, reply.accepted.prompt_tokens, reply.accepted.seed)
    if kind == "finished":
        return _finished(reply.finished, target)
    if kind == "prompt":
        prompt = reply.prompt
        # The first token has nothing before it: its message is empty.
        found = (
            None if at == 0 and not each.ByteSize() else _logprobs(each)
            for at, each in enumerate(prompt.logprobs)
        )
        return Prompt(tuple(prompt.ids), prompt.text, tuple(found))
    raise _strange(target, "a reply without an event")


def to_model_info(reply: pb.ModelInfoReply) -> ModelInfo:
    sampling = reply.defaults.sampling
    told = {each.name: value for each, value in sampling.ListFields()}
    return ModelInfo(
        name=reply.name,
        model_hash=reply.model_hash,
        compute_mode=reply.compute_mode,
        engine_numerics_id=reply.engine_numerics_id,
        expert_numerics_id=reply.expert_numerics_id,
        vocab=reply.vocab,
        max_positions=reply.max_positions,
        layers=reply.layers,
        experts=reply.experts,
        top_k=reply.top_k,
        eos_ids=tuple(reply.eos_ids),
        workers=tuple(reply.workers),
        epoch=reply.epoch,
        build_version=reply.build_version,
        has_tokenizer=reply.has_tokenizer,
        has_chat_template=reply.has_chat_template,
        defaults=Defaults(
            sampling=SamplingOptions(**told),
            max_tokens=reply.defaults.max_tokens,
            stop_ids=tuple(reply.defaults.stop_ids),
            sources=dict(reply.defaults.sources),
            ignored=tuple(reply.defaults.ignored),
        ),
        content_digest=reply.content_digest,
    )


def to_tokenized(reply: pb.TokenizeReply) -> Tokenized:
    return Tokenized(tuple(reply.ids), tuple(reply.pieces))


def _put_chat(message: pb.Chat, chat: Chat) -> None:
    fill(message, {"add_generation_prompt": chat.add_generation_prompt}, "chat")
    message.SetInParent()
    for index, each in enumerate(chat.messages):
        fill(message.messages.add(), {"role": each.role, "content": each.content}, f"chat.messages[{index}]")


def _logprobs(message: pb.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(message.logprob, tuple(zip(message.top_ids, message.top_logprobs, strict=False)))


def _finished(message: pb.Finished, target: str) -> Finished:
    try:
        reason = FinishReason(message.reason)
    except ValueError:
        raise _strange(target, f"finish reason {message.reason} is unknown") from None
    by_id = reason is FinishReason.STOP and not message.stop_string
    return Finished(
        reason=reason,
        stop_id=message.stop_id if by_id else None,
        usage=Usage(message.usage.prompt_tokens, message.usage.completion_tokens),
        receipt=message.receipt,
        seed=message.seed,
        engine_numerics_id=message.engine_numerics_id,
        choice=message.choice,
        stop_string=message.stop_string or None,
    )


def _strange(target: str, what: str) -> FrameError:
    return FrameError(f"{target}: {what}", peer=target)
