"""The synchronous Python client of the service Generation.

Errors are those of colibri.errors, as the server raised them; one that never reached a server names its
target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import grpc

from colibri.errors import FrameError, InvalidInput
from colibri.generation import Accepted, Event, Finished, FinishReason, Resume, Tokens, Usage
from colibri.rpc.status import from_rpc_error
from colibri.transport.address import parse_address
from colibri.transport.options import channel_options
from colibri.v1 import generation_pb2 as pb
from colibri.v1 import generation_pb2_grpc

#: Of calls that compute nothing.
QUICK_S = 10.0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a server serves. max_positions: prompt plus answer, in tokens; workers: the live ones, by name."""

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


class EventStream(Iterator[Event]):
    """The events of one answer: Accepted, Tokens, ..., Finished. Closing it before the end aborts the
    request.
    """

    def __init__(self, call: grpc._CallIterator[pb.GenerateReply], target: str) -> None:
        self._call = call
        self._target = target

    def __next__(self) -> Event:
        """Raises ColibriError when the answer fails or its time ends."""
        try:
            return _event(next(self._call), self._target)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self._target) from None

    def close(self) -> None:
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client:
    """One channel to a coordinator; share it between threads. target: "unix:/path" or "host:port".

    timeout_s: of a whole answer, where `generate` is not told another one.
    """

    def __init__(self, target: str, *, timeout_s: float = 600.0) -> None:
        self.target = str(parse_address(target, "target"))
        self._timeout_s = timeout_s
        self._channel = grpc.insecure_channel(self.target, options=channel_options())
        self._stub = generation_pb2_grpc.GenerationStub(self._channel)

    def wait_ready(self, timeout_s: float) -> None:
        """Waits for the server to accept connections. Raises ColibriError naming it after `timeout_s`
        seconds.
        """
        try:
            self._stub.ModelInfo(pb.ModelInfoRequest(), timeout=timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        seed: int | None = None,
        stop_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        resume: Resume | None = None,
        request_id: str = "",
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> EventStream:
        """Streams an answer to a text or to token ids. What is None takes the checkpoint's default.

        max_tokens: of the whole answer, resumed ids included. timeout_s: after it the server ends the
        request with DeadlineExpired. Raises InvalidInput for values that fit no message; everything else
        the server judges, and the stream raises it.
        """
        try:
            request = pb.GenerateRequest(
                request_id=request_id,
                sampling=pb.Sampling(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed),
                stopping=pb.Stopping(max_tokens=max_tokens, stop_ids=stop_ids, ignore_eos=ignore_eos),
                priority=priority,
            )
            if isinstance(prompt, str):
                request.text = prompt
            else:
                request.token_ids.ids.extend(prompt)
                request.token_ids.SetInParent()
            if resume is not None:
                request.resume.generated_ids.extend(resume.generated_ids)
                request.resume.receipt = resume.receipt
        except (ValueError, TypeError) as error:
            raise InvalidInput("request", "values that fit GenerateRequest", error) from error
        timeout = self._timeout_s if timeout_s is None else timeout_s
        return EventStream(self._stub.Generate(request, timeout=timeout), self.target)

    def abort(self, request_id: str, *, timeout_s: float = QUICK_S) -> bool:
        """Ends a request at its next step; its stream gets Finished with ABORT. False: unknown, or it has
        ended.
        """
        try:
            return self._stub.Abort(pb.AbortRequest(request_id=request_id), timeout=timeout_s).found
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None

    def model_info(self, *, timeout_s: float = QUICK_S) -> ModelInfo:
        try:
            reply = self._stub.ModelInfo(pb.ModelInfoRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None
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
        )

    def close(self) -> None:
        """Ends the channel; open streams fail with Cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _event(reply: pb.GenerateReply, target: str) -> Event:
    kind = reply.WhichOneof("event")
    if kind == "tokens":
        tokens = reply.tokens
        return Tokens(tuple(tokens.ids), tuple(tokens.receipts), tokens.text, tokens.choice)
    if kind == "accepted":
        return Accepted(reply.accepted.request_id, reply.accepted.prompt_tokens, reply.accepted.seed)
    if kind == "finished":
        finished = reply.finished
        try:
            reason = FinishReason(finished.reason)
        except ValueError:
            raise FrameError(f"{target}: finish reason {finished.reason} is unknown", peer=target) from None
        return Finished(
            reason=reason,
            stop_id=finished.stop_id if reason is FinishReason.STOP else None,
            usage=Usage(finished.usage.prompt_tokens, finished.usage.completion_tokens),
            receipt=finished.receipt,
            seed=finished.seed,
            engine_numerics_id=finished.engine_numerics_id,
            choice=finished.choice,
        )
    raise FrameError(f"{target}: a reply without an event", peer=target)
