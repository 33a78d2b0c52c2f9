"""Target: a coordinator's gRPC service Generation."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from colibri.bench.load.record import Recording
from colibri.bench.load.workload import LoadRequest
from colibri.client.channel import Server
from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError, FrameError, WorkerLost
from colibri.generation import FinishReason
from colibri.grpc_options import MAX_STREAMS, channel_options
from colibri.rpc.status import from_status
from colibri.security.channel import ChannelSecurity
from colibri.v1 import generation_pb2 as pb
from colibri.v1 import generation_pb2_grpc

#: Streams of one connection; beyond a server's limit a client would queue calls and say nothing.
STREAMS_PER_CONNECTION = MAX_STREAMS // 2
#: Pause before an answer is resumed, where the server advises none.
RESUME_PAUSE_S = 0.2


class GrpcTarget:
    """target: "unix:/path" or "host:port"; in_flight: requests at once, for which connections are made.

    security: of the channels, and the token of the calls. resume: an answer that fails with a retryable error is
    continued from its tokens and last receipt, within the request's own time, and counted; otherwise it is a failed
    request.
    """

    def __init__(
        self,
        target: str,
        *,
        in_flight: int = STREAMS_PER_CONNECTION,
        resume: bool = False,
        security: ChannelSecurity | None = None,
    ) -> None:
        self._server = Server.of(target, security)
        self.target = self._server.target
        self._connections = math.ceil(in_flight / STREAMS_PER_CONNECTION)
        self._resume = resume
        self._channels: list[grpc.aio.Channel] = []
        self._stubs: itertools.cycle[Any] = itertools.cycle(())

    async def open(self, timeout_s: float) -> None:
        # Made here: a channel belongs to the event loop that runs when it is made.
        options = channel_options()
        self._channels = [
            self._server.security.open_aio(self.target, options) for _ in range(self._connections)
        ]
        stubs = [generation_pb2_grpc.GenerationStub(channel) for channel in self._channels]
        self._stubs = itertools.cycle(stubs)
        try:
            await asyncio.gather(
                *(
                    stub.ModelInfo(
                        pb.ModelInfoRequest(),
                        timeout=timeout_s,
                        wait_for_ready=True,
                        metadata=self._server.metadata(),
                    )
                    for stub in stubs
                )
            )
        except grpc.aio.AioRpcError as error:
            raise await self._server.error_aio(error, waited=True) from None

    async def send(self, recording: Recording, timeout_s: float) -> None:
        deadline = Deadline.after(timeout_s, recording.clock)
        while True:
            try:
                await self._attempt(recording, deadline, recording.clock)
                return
            except ColibriError as error:
                if not (self._resume and error.retryable) or deadline.expired(recording.clock):
                    raise
                pause = RESUME_PAUSE_S if error.retry_after_s is None else error.retry_after_s
                if pause >= (deadline.remaining(recording.clock) or 0.0):
                    raise
                await asyncio.sleep(pause)
            if len(recording.ids) == recording.request.max_tokens:
                # Only the end was lost.
                recording.finish_reason = FinishReason.LENGTH.name.lower()
                return
            recording.resumes += 1

    async def _attempt(self, recording: Recording, deadline: Deadline, clock: Clock) -> None:
        receipt = recording.receipts[-1] if recording.receipts else 0
        message = to_message(recording.request, recording.ids, receipt)
        call = next(self._stubs).Generate(
            message, timeout=deadline.remaining(clock), metadata=self._server.metadata()
        )
        recording.note_sent()
        finished = False
        try:
            async for reply in call:
                finished = self._take(reply, recording) or finished
        except grpc.aio.AioRpcError as error:
            # Whoever said Finished has sent all of the answer.
            if not finished:
                raise _typed(error, self.target) from None
        finally:
            call.cancel()
        if not finished:
            raise WorkerLost(f"{self.target}: the stream ended without Finished", peer=self.target)

    def _take(self, reply: pb.GenerateReply, recording: Recording) -> bool:
        """Whether this was the last event."""
        kind = reply.WhichOneof("event")
        if kind == "tokens":
            tokens = reply.tokens
            if len(tokens.ids) != len(tokens.receipts):
                raise FrameError(
                    f"{self.target}: {len(tokens.ids)} ids with {len(tokens.receipts)} receipts",
                    peer=self.target,
                )
            recording.note_tokens(tokens.ids, tokens.receipts)
        elif kind == "accepted":
            recording.note_accepted(reply.accepted.prompt_tokens)
        elif kind == "finished":
            finished = reply.finished
            recording.output_tokens = finished.usage.completion_tokens
            recording.engine_numerics_id = finished.engine_numerics_id
            try:
                recording.finish_reason = FinishReason(finished.reason).name.lower()
            except ValueError:
                text = f"{self.target}: finish reason {finished.reason} is unknown"
                raise FrameError(text, peer=self.target) from None
            return True
        return False

    async def close(self) -> None:
        channels, self._channels = self._channels, []
        await asyncio.gather(*(channel.close() for channel in channels))


def to_message(request: LoadRequest, generated: Sequence[int] = (), receipt: int = 0) -> pb.GenerateRequest:
    """generated, receipt: of an answer that is resumed, its tokens so far and the last one's receipt."""
    sampling = request.sampling
    message = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=request.prompt_ids),
        sampling=pb.Sampling(
            temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k, seed=request.seed
        ),
        stopping=pb.Stopping(max_tokens=request.max_tokens, ignore_eos=request.ignore_eos),
    )
    if generated:
        message.resume.generated_ids.extend(generated)
        message.resume.receipt = receipt
    return message


def _typed(error: grpc.aio.AioRpcError, target: str) -> ColibriError:
    return from_status(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()), target)
