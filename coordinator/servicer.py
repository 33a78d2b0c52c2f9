"""The gRPC service Generation: a thin layer over the engine."""

from __future__ import annotations

import contextlib
import secrets
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import BoundedSemaphore

import grpc

from colibri.coordinator.engine import Engine
from colibri.coordinator.memory_return import MemoryReturn
from colibri.coordinator.prompts import PromptEncoder
from colibri.coordinator.reader_watch import ReaderWatch
from colibri.coordinator.replies import to_reply
from colibri.coordinator.validation import call_size
from colibri.coordinator.validation.fields import check_bytes, checked_ids
from colibri.coordinator.validation.requests import Draws, RequestLimits, check_request_id, to_request
from colibri.deadline import Clock, Deadline
from colibri.errors import Busy, InvalidInput
from colibri.grpc_options import CONTROL_MESSAGE_BYTES
from colibri.models.chat_renderer import ChatRenderer
from colibri.models.config import MixtralConfig
from colibri.models.generation_config import GenerationDefaults
from colibri.models.tokenizer import Tokenizer
from colibri.placement import Directory
from colibri.rpc.deadline import deadline_of
from colibri.rpc.server import Service
from colibri.rpc.turns import Turns, Waiter
from colibri.security.caller import caller_of
from colibri.v1 import generation_pb2 as pb
from colibri.v1 import generation_pb2_grpc
from colibri.version import __version__

#: Tokens put into a reply at once, so that other threads get in between.
_SLICE = 4096
#: Calls that the server takes beyond the streams of answers: Abort is heard even when all of them are taken.
UNARY_CALLS = 8


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What ModelInfo says. name: as users know it; model_hash: the model's `weights_hash`; content_digest: called each
    time.
    """

    name: str
    model_hash: str
    config: MixtralConfig
    defaults: GenerationDefaults
    content_digest: Callable[[], str] = lambda: ""


class GenerationServicer(generation_pb2_grpc.GenerationServicer):
    """Serves the engine. Each answer holds one thread of the server while it streams; build_server must allow
    `max_calls`.

    directory: None without workers.
    chat: None without a chat template; closed with this.
    reader_timeout_s: a client that reads nothing for this long is cut off and its request aborted, seconds. Until
        then its answer is kept and merged, and nothing waits for it.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer | None,
        model: ServedModel,
        directory: Directory | None = None,
        *,
        chat: ChatRenderer | None = None,
        reader_timeout_s: float = 60.0,
        clock: Clock = time.monotonic,
    ) -> None:
        self._engine = engine
        self._prompts = PromptEncoder(model.config.vocab, tokenizer, chat)
        self._model = model
        self._directory = directory
        self._clock = clock
        self._limits = RequestLimits(model.config.vocab, engine.context, model.defaults)
        self._draws = Draws(seed=lambda: secrets.randbits(64), request_id=lambda: uuid.uuid4().hex)
        # Beyond what the engine holds: answers that are complete and still being read.
        self._streams = 2 * engine.options.max_running + engine.options.max_queued
        self._free = BoundedSemaphore(self._streams)
        self._watch = ReaderWatch(reader_timeout_s)
        self._large = Turns("large texts")
        self._memory = MemoryReturn()

    @property
    def max_calls(self) -> int:
        return self._streams + UNARY_CALLS

    def service(self) -> Service:
        """For build_server."""
        return Service(
            pb.DESCRIPTOR.services_by_name["Generation"].full_name,
            lambda server: generation_pb2_grpc.add_GenerationServicer_to_server(self, server),
            sizes=call_size.sizes(self._engine.context),
        )

    def close(self) -> None:
        """Closes it. Call after the server has stopped."""
        self._watch.close()
        self._memory.close()
        if self._prompts.chat is not None:
            self._prompts.chat.close()

    def Generate(
        self, request: pb.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GenerateReply]:
        if not self._free.acquire(blocking=False):
            raise Busy(f"{self._streams} answers are being read; no more are started now", retry_after_s=1.0)
        try:
            deadline = deadline_of(context, self._clock)
            with self._turn(call_size.of_generate(request, self._engine.context), context, deadline):
                asked = to_request(
                    request,
                    self._limits,
                    self._prompts.tokenizer,
                    deadline,
                    self._draws,
                    self._prompts.chat,
                )
                handle = self._engine.submit(replace(asked, owner=caller_of(context)))
            # A client that goes away, or was gone already, takes its request along.
            if not context.add_callback(handle.cancel):
                handle.cancel()
            with self._watch.watching(handle, context.cancel):
                for event in handle.events():
                    yield to_reply(event)
        finally:
            self._free.release()

    def Abort(self, request: pb.AbortRequest, context: grpc.ServicerContext) -> pb.AbortReply:
        check_request_id(request.request_id, required=True)
        return pb.AbortReply(found=self._engine.abort(request.request_id, caller_of(context)))

    def ModelInfo(self, request: pb.ModelInfoRequest, context: grpc.ServicerContext) -> pb.ModelInfoReply:
        config, numerics = self._model.config, self._engine.numerics
        membership = None if self._directory is None else self._directory.current()
        return pb.ModelInfoReply(
            name=self._model.name,
            model_hash=self._model.model_hash,
            compute_mode=numerics.expert.deployment_mode,
            engine_numerics_id=numerics.id,
            expert_numerics_id=numerics.expert.id,
            vocab=config.vocab,
            max_positions=self._engine.context,
            layers=config.layers,
            experts=config.experts,
            top_k=config.top_k,
            eos_ids=self._model.defaults.eos,
            workers=() if membership is None else sorted(membership.endpoints),
            epoch=0 if membership is None else membership.placement.epoch,
            build_version=__version__,
            defaults=_defaults(self._model.defaults),
            has_tokenizer=self._prompts.tokenizer is not None,
            has_chat_template=self._prompts.chat is not None,
            content_digest=self._model.content_digest(),
        )

    def Tokenize(self, request: pb.TokenizeRequest, context: grpc.ServicerContext) -> pb.TokenizeReply:
        tokenizer = self._need_tokenizer()
        deadline = deadline_of(context, self._clock)
        kind = request.WhichOneof("input")
        with self._turn(call_size.of_tokenize(request), context, deadline):
            if kind == "text":
                add_special = not request.HasField("add_special") or request.add_special
                text = request.text
                check_bytes("text", text)
            elif kind == "chat":
                if request.HasField("add_special"):
                    raise InvalidInput(
                        "add_special", "unset with a chat, whose template decides", request.add_special
                    )
                add_special = False
                _, text = self._prompts.chat_text(request.chat, deadline)
            else:
                raise InvalidInput("input", "text or chat", "neither")
            found = tokenizer.spelled(text, add_special, CONTROL_MESSAGE_BYTES, field=kind, deadline=deadline)
            reply = pb.TokenizeReply()
            for at in range(0, len(found.ids), _SLICE):
                ids = found.ids[at : at + _SLICE].tolist()
                reply.ids.extend(ids)
                reply.pieces.extend(map(found.pieces.__getitem__, ids))
            return reply

    def Detokenize(self, request: pb.DetokenizeRequest, context: grpc.ServicerContext) -> pb.DetokenizeReply:
        tokenizer = self._need_tokenizer()
        deadline = deadline_of(context, self._clock)
        most = call_size.most_ids(self._engine.context)
        if len(request.ids) > most:
            raise InvalidInput("ids", f"at most {most} ids", f"{len(request.ids)} ids")
        with self._turn(call_size.of_detokenize(request), context, deadline):
            ids = checked_ids("ids", request.ids, self._model.config.vocab)
            # The text's tag and length are part of the message.
            text = tokenizer.decode(
                ids, request.skip_special, most_bytes=CONTROL_MESSAGE_BYTES - 8, deadline=deadline
            )
            return pb.DetokenizeReply(text=text)

    def _turn(
        self, size: int, context: grpc.ServicerContext, deadline: Deadline
    ) -> contextlib.AbstractContextManager[None]:
        """Large calls are computed one at a time, callers in turn."""
        if size <= call_size.SHORT_BYTES:
            return contextlib.nullcontext()
        return self._large.turn(Waiter.of(context, deadline))

    def _need_tokenizer(self) -> Tokenizer:
        if self._prompts.tokenizer is None:
            raise InvalidInput("model", "one with a tokenizer", f"{self._model.name}, which has none")
        return self._prompts.tokenizer


def _defaults(defaults: GenerationDefaults) -> pb.Defaults:
    return pb.Defaults(
        sampling=pb.Sampling(
            temperature=defaults.temperature,
            top_p=defaults.top_p,
            top_k=defaults.top_k,
            min_p=defaults.min_p,
            repetition_penalty=defaults.repetition_penalty,
        ),
        max_tokens=defaults.max_new_tokens or 0,
        stop_ids=defaults.eos,
        sources=defaults.sources,
        ignored=defaults.ignored,
    )
