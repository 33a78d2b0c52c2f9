"""The client of the service Generation for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc
import grpc.aio

from colibri.client.answer import Answer, Answers
from colibri.client.channel import Server, client_options
from colibri.client.messages import (
    ModelInfo,
    Tokenized,
    to_chat,
    to_detokenize,
    to_event,
    to_model_info,
    to_request,
    to_tokenize,
    to_tokenized,
)
from colibri.client.options import Message, PromptLike, RequestOptions, RetryChoice
from colibri.client.resumption import Resumption
from colibri.client.retry import Attempts, Retry
from colibri.client.stream import OnRetry
from colibri.client.sync import QUICK_S
from colibri.deadline import Deadline
from colibri.errors import Cancelled, ColibriError, DeadlineExpired, FrameError
from colibri.generation import Chat, Event
from colibri.rpc.status import from_rpc_error
from colibri.security.channel import ChannelSecurity
from colibri.v1 import generation_pb2 as pb
from colibri.v1 import generation_pb2_grpc

Call = grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateReply]
_Reply = TypeVar("_Reply")


class AsyncEventStream(AsyncIterator[Event]):
    """The events of one answer, as EventStream. Made inside a running event loop and read by one task.

    Cancelling that task while it reads aborts the request.
    """

    def __init__(
        self,
        start: Callable[[pb.GenerateRequest, float | None], Call],
        abort: Callable[[str], Awaitable[object]],
        resumption: Resumption,
        attempts: Attempts,
        on_retry: OnRetry | None = None,
        typed: Callable[[grpc.RpcError], Awaitable[ColibriError]] | None = None,
    ) -> None:
        """typed: returns the typed error of a failed call; None: judge by its status alone."""
        self._typed = typed
        self._start = start
        self._abort = abort
        self._resumption = resumption
        self._attempts = attempts
        self._on_retry = on_retry
        self._closed = asyncio.Event()
        self._failed: ColibriError | None = None
        self._call: Call | None = None
        self._begin()

    @property
    def request_id(self) -> str:
        """The id for Abort; the same for every attempt."""
        return self._resumption.request_id

    async def __anext__(self) -> Event:
        """Returns the next event. Raises ColibriError if the answer fails or its time ends."""
        if self._failed is not None:
            raise self._failed
        try:
            while not self._resumption.done:
                event = await self._next()
                if event is not None:
                    return event
        except ColibriError as error:
            self._failed = error
            self._cancel()
            raise
        except BaseException:
            self.close()
            raise
        await self._finish()
        raise StopAsyncIteration

    async def answers(self) -> list[Answer]:
        """Reads to the end. Returns one Answer per choice. Raises what the stream raises."""
        return (await self._collected()).all()

    async def answer(self) -> Answer:
        """Does as `answers`, for a request with one choice."""
        return (await self._collected()).only()

    def close(self) -> None:
        """Aborts the request unless it has ended. A stream that is being read ends with Cancelled."""
        self._closed.set()
        self._cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _collected(self) -> Answers:
        answers = Answers()
        async for event in self:
            answers.take(event)
        return answers

    async def _next(self) -> Event | None:
        target = self._resumption.target
        try:
            call = self._call or self._begin()
            reply = await call.read()
        except grpc.RpcError as error:
            self._call = None
            typed = from_rpc_error(error, target) if self._typed is None else await self._typed(error)
            await self._lost(typed)
            return None
        except asyncio.CancelledError:
            if not self._closed.is_set():
                raise  # the reading task itself
            raise self._cancelled() from None
        if not isinstance(reply, pb.GenerateReply):
            self._call = None
            if not self._resumption.call_complete:
                raise FrameError(f"{target}: the answer ended without Finished", peer=target)
            return None
        event = self._resumption.take(to_event(reply, target))
        if event is not None:
            self._attempts.news()
        return event

    def _begin(self) -> Call:
        remaining = self._attempts.remaining_s()
        if remaining == 0:
            raise DeadlineExpired(f"{self._resumption.target}: the time of this request is over")
        self._call = self._start(self._resumption.next_request(), remaining)
        return self._call

    async def _finish(self) -> None:
        """Reads the status, so that the server lets go of the answer; its content does not matter any more."""
        call, self._call = self._call, None
        try:
            if call is not None and isinstance(await call.read(), pb.GenerateReply):
                call.cancel()
        except grpc.RpcError:
            return

    async def _lost(self, error: ColibriError) -> None:
        if self._closed.is_set():
            raise self._cancelled() from error
        wait = self._attempts.wait_after(error, retryable=self._resumption.may_ask_again(error))
        if wait is None:
            raise error from None
        if self._on_retry is not None:
            self._on_retry(error, wait)
        if self._resumption.is_ghost(error):
            with contextlib.suppress(ColibriError):  # the next attempt tells what is wrong
                await self._abort(self.request_id)
        try:
            await asyncio.wait_for(self._closed.wait(), wait)
        except TimeoutError:
            return
        raise self._cancelled()

    def _cancelled(self) -> Cancelled:
        return Cancelled(f"{self._resumption.target}: the stream was closed")

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()


class AsyncClient:
    """The client for asyncio, with the methods of Client. Made and used in one running event loop."""

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = 600.0,
        retry: Retry | None = None,
        on_retry: OnRetry | None = None,
        security: ChannelSecurity | None = None,
    ) -> None:
        self._server = Server.of(target, security)
        self.target = self._server.target
        self._timeout_s = timeout_s
        self._retry = retry
        self._on_retry = on_retry
        self._channel = self._server.security.open_aio(self.target, client_options())
        self._stub = generation_pb2_grpc.GenerationStub(self._channel)

    async def wait_ready(self, timeout_s: float) -> None:
        """See Client.wait_ready."""
        try:
            await self._stub.ModelInfo(
                pb.ModelInfoRequest(),
                timeout=timeout_s,
                wait_for_ready=True,
                metadata=self._server.metadata(),
            )
        except grpc.RpcError as error:
            raise await self._server.error_aio(error, waited=True) from None

    def generate(
        self,
        prompt: PromptLike,
        *,
        timeout_s: float | None = None,
        retry: RetryChoice = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncEventStream:
        """See Client.generate. There is nothing to await: read the stream with `async for`."""
        return self.send(to_request(prompt, **options), timeout_s=timeout_s, retry=retry)

    def send(
        self, request: pb.GenerateRequest, *, timeout_s: float | None = None, retry: RetryChoice = None
    ) -> AsyncEventStream:
        """Does as `generate`, for a message that is already made."""
        return AsyncEventStream(
            lambda message, seconds: self._stub.Generate(
                message, timeout=seconds, metadata=self._server.metadata()
            ),
            lambda request_id: self._ask(
                self._stub.Abort, pb.AbortRequest(request_id=request_id), QUICK_S, retry=False
            ),
            Resumption(request, self.target),
            Attempts(
                self._chosen(retry),
                Deadline.after(self._timeout_s if timeout_s is None else timeout_s),
            ),
            self._on_retry,
            self._server.error_aio,
        )

    def chat(
        self,
        messages: Sequence[Message],
        *,
        timeout_s: float | None = None,
        retry: RetryChoice = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncEventStream:
        """See Client.chat."""
        return self.generate(to_chat(messages), timeout_s=timeout_s, retry=retry, **options)

    async def abort(self, request_id: str, *, timeout_s: float = QUICK_S) -> bool:
        """See Client.abort."""
        reply = await self._ask(self._stub.Abort, pb.AbortRequest(request_id=request_id), timeout_s)
        return reply.found

    async def model_info(self, *, timeout_s: float = QUICK_S) -> ModelInfo:
        return to_model_info(await self._ask(self._stub.ModelInfo, pb.ModelInfoRequest(), timeout_s))

    async def tokenize(
        self,
        what: str | Chat | Sequence[Message],
        *,
        add_special: bool | None = None,
        timeout_s: float = QUICK_S,
    ) -> Tokenized:
        """See Client.tokenize."""
        request = to_tokenize(what, add_special)
        return to_tokenized(await self._ask(self._stub.Tokenize, request, timeout_s))

    async def detokenize(
        self, ids: Sequence[int], *, skip_special: bool = False, timeout_s: float = QUICK_S
    ) -> str:
        reply = await self._ask(self._stub.Detokenize, to_detokenize(ids, skip_special), timeout_s)
        return reply.text

    async def close(self) -> None:
        """Ends the channel; open streams fail with Cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(
        self,
        method: Callable[..., Awaitable[_Reply]],
        request: Any,
        timeout_s: float,
        *,
        retry: RetryChoice = None,
    ) -> _Reply:
        attempts = Attempts(self._chosen(retry), Deadline.after(timeout_s))
        while True:
            try:
                return await method(request, timeout=attempts.remaining_s(), metadata=self._server.metadata())
            except grpc.RpcError as failure:
                error = await self._server.error_aio(failure)
            wait = attempts.wait_after(error)
            if wait is None:
                raise error
            if self._on_retry is not None:
                self._on_retry(error, wait)
            await asyncio.sleep(wait)

    def _chosen(self, retry: RetryChoice) -> Retry | None:
        return (self._retry if retry is None else retry) or None
