"""The synchronous client of the service Generation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc

from colibri.client.channel import Server, client_options
from colibri.client.messages import (
    ModelInfo,
    Tokenized,
    to_chat,
    to_detokenize,
    to_model_info,
    to_request,
    to_tokenize,
    to_tokenized,
)
from colibri.client.options import Message, PromptLike, RequestOptions, RetryChoice
from colibri.client.resumption import Resumption
from colibri.client.retry import Attempts, Retry
from colibri.client.stream import EventStream, OnRetry
from colibri.deadline import Deadline
from colibri.generation import Chat
from colibri.security.channel import ChannelSecurity
from colibri.v1 import generation_pb2 as pb
from colibri.v1 import generation_pb2_grpc

#: Of calls that compute nothing.
QUICK_S = 10.0

_Reply = TypeVar("_Reply")


class Client:
    """One channel to a coordinator. Threads may share it.

    target: "unix:/path" or "host:port".
    security: of the channel, and the token of its calls; None: in clear, without a token.
    timeout_s: for a whole answer, seconds, unless `generate` sets its own.
    retry: None: retry nothing. Retry(): retry failures that advise it, and resume in the middle of an answer.
    on_retry: called on the reading thread with the error and the seconds until the next attempt.

    Errors are those of colibri.errors, as the server raised them; an error that never reached a server names its
    target.
    """

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
        self._channel = self._server.security.open(self.target, client_options())
        self._stub = generation_pb2_grpc.GenerationStub(self._channel)

    def wait_ready(self, timeout_s: float) -> None:
        """Waits for the server to accept connections. After `timeout_s` seconds, raises ColibriError naming it."""
        try:
            self._stub.ModelInfo(
                pb.ModelInfoRequest(),
                timeout=timeout_s,
                wait_for_ready=True,
                metadata=self._server.metadata(),
            )
        except grpc.RpcError as error:
            raise self._server.error(error, waited=True) from None

    def generate(
        self,
        prompt: PromptLike,
        *,
        timeout_s: float | None = None,
        retry: RetryChoice = None,
        **options: Unpack[RequestOptions],
    ) -> EventStream:
        """Streams an answer to a text, to token ids or to a chat. RequestOptions explains the options.

        timeout_s: for the whole answer, retries included, seconds. After it the server ends the request, and the
            stream raises DeadlineExpired.
        retry: None: as the client's; False: retry nothing.

        Raises InvalidInput for values that fit no message. The server checks everything else, and the stream raises
        its errors.
        """
        return self.send(to_request(prompt, **options), timeout_s=timeout_s, retry=retry)

    def send(
        self, request: pb.GenerateRequest, *, timeout_s: float | None = None, retry: RetryChoice = None
    ) -> EventStream:
        """Does as `generate`, for a message that is already made."""
        return EventStream(
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
            self._server.error,
        )

    def chat(
        self,
        messages: Sequence[Message],
        *,
        timeout_s: float | None = None,
        retry: RetryChoice = None,
        **options: Unpack[RequestOptions],
    ) -> EventStream:
        """Streams the next message of a conversation, rendered with the checkpoint's chat template; otherwise as
        `generate`.
        """
        return self.generate(to_chat(messages), timeout_s=timeout_s, retry=retry, **options)

    def abort(self, request_id: str, *, timeout_s: float = QUICK_S) -> bool:
        """Ends a request at its next step; its stream gets Finished with ABORT.

        Returns False if the id is unknown or the request has ended.
        """
        return self._ask(self._stub.Abort, pb.AbortRequest(request_id=request_id), timeout_s).found

    def model_info(self, *, timeout_s: float = QUICK_S) -> ModelInfo:
        return to_model_info(self._ask(self._stub.ModelInfo, pb.ModelInfoRequest(), timeout_s))

    def tokenize(
        self,
        what: str | Chat | Sequence[Message],
        *,
        add_special: bool | None = None,
        timeout_s: float = QUICK_S,
    ) -> Tokenized:
        """Returns the ids of a prompt, exactly as `generate` encodes it.

        add_special: for text: whether to add special tokens, by default True.
        """
        return to_tokenized(self._ask(self._stub.Tokenize, to_tokenize(what, add_special), timeout_s))

    def detokenize(
        self, ids: Sequence[int], *, skip_special: bool = False, timeout_s: float = QUICK_S
    ) -> str:
        return self._ask(self._stub.Detokenize, to_detokenize(ids, skip_special), timeout_s).text

    def close(self) -> None:
        """Ends the channel; open streams fail with Cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(
        self, method: Callable[..., _Reply], request: Any, timeout_s: float, *, retry: RetryChoice = None
    ) -> _Reply:
        attempts = Attempts(self._chosen(retry), Deadline.after(timeout_s))
        return ask(method, request, attempts, self._server, self._on_retry)

    def _chosen(self, retry: RetryChoice) -> Retry | None:
        return (self._retry if retry is None else retry) or None


def ask(
    method: Callable[..., _Reply],
    request: Any,
    attempts: Attempts,
    server: Server,
    on_retry: OnRetry | None = None,
) -> _Reply:
    """Makes a unary call with its retries. Raises ColibriError."""
    while True:
        try:
            return method(request, timeout=attempts.remaining_s(), metadata=server.metadata())
        except grpc.RpcError as failure:
            error = server.error(failure)
        wait = attempts.wait_after(error)
        if wait is None:
            raise error
        if on_retry is not None:
            on_retry(error, wait)
        time.sleep(wait)
