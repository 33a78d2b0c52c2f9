"""Read the events of one answer synchronously."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self, TypeAlias

import grpc

from colibri.client.answer import Answer, collect
from colibri.client.messages import to_event
from colibri.client.resumption import Resumption
from colibri.client.retry import Attempts
from colibri.errors import Cancelled, ColibriError, DeadlineExpired, FrameError
from colibri.generation import Event
from colibri.rpc.status import from_rpc_error
from colibri.v1 import generation_pb2 as pb

Call: TypeAlias = "grpc._CallIterator[pb.GenerateReply]"
#: Told of a call that is about to be asked again: why, and in how many seconds.
OnRetry = Callable[[ColibriError, float], None]


class EventStream(Iterator[Event]):
    """The events of one answer: Accepted, Tokens, ..., one Finished per choice. Closing it before the end aborts the
    request.

    With retries, a lost call is asked again with the tokens that came, and the stream continues: no event comes
    twice, and the bits are those of an undisturbed answer.
    """

    def __init__(
        self,
        start: Callable[[pb.GenerateRequest, float | None], Call],
        abort: Callable[[str], object],
        resumption: Resumption,
        attempts: Attempts,
        on_retry: OnRetry | None = None,
        typed: Callable[[grpc.RpcError], ColibriError] | None = None,
    ) -> None:
        """typed: returns the typed error of a failed call; None: judge by its status alone."""
        self._start = start
        self._abort = abort
        self._resumption = resumption
        self._attempts = attempts
        self._on_retry = on_retry
        self._typed = typed or (lambda error: from_rpc_error(error, resumption.target))
        self._closed = threading.Event()
        self._failed: ColibriError | None = None
        self._call: Call | None = None
        self._begin()

    @property
    def request_id(self) -> str:
        """The id for Abort; the same for every attempt."""
        return self._resumption.request_id

    def __next__(self) -> Event:
        """Returns the next event. Raises ColibriError if the answer fails or its time ends."""
        if self._failed is not None:
            raise self._failed
        try:
            while not self._resumption.done:
                event = self._next()
                if event is not None:
                    return event
        except ColibriError as error:
            self._failed = error
            self._cancel()
            raise
        self._finish()
        raise StopIteration

    def answers(self) -> list[Answer]:
        """Reads to the end. Returns one Answer per choice. Raises what the stream raises."""
        return collect(self).all()

    def answer(self) -> Answer:
        """Does as `answers`, for a request with one choice."""
        return collect(self).only()

    def close(self) -> None:
        """Aborts the request unless it has ended. Any thread may call; a stream that is being read ends with
        Cancelled.
        """
        self._closed.set()
        self._cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next(self) -> Event | None:
        try:
            call = self._call or self._begin()
            reply = next(call)
        except StopIteration:
            self._call = None
            self._check_ended()
            return None
        except grpc.RpcError as error:
            self._call = None
            self._lost(self._typed(error))
            return None
        event = self._resumption.take(to_event(reply, self._resumption.target))
        if event is not None:
            self._attempts.news()
        return event

    def _finish(self) -> None:
        """Reads the status, so that the server lets go of the answer; its content does not matter any more."""
        call, self._call = self._call, None
        try:
            if call is not None and next(call, None) is not None:
                call.cancel()
        except grpc.RpcError:
            return

    def _begin(self) -> Call:
        remaining = self._attempts.remaining_s()
        if remaining == 0:
            raise DeadlineExpired(f"{self._resumption.target}: the time of this request is over")
        call = self._call = self._start(self._resumption.next_request(), remaining)
        if self._closed.is_set():  # close() may not have seen this call
            call.cancel()
        return call

    def _check_ended(self) -> None:
        """Checks a call that ended without an error. Raises FrameError if a choice that it was asked for has no
        Finished.
        """
        if not self._resumption.call_complete:
            raise FrameError(
                f"{self._resumption.target}: the answer ended without Finished", peer=self._resumption.target
            )

    def _lost(self, error: ColibriError) -> None:
        if self._closed.is_set():
            raise self._cancelled() from error
        wait = self._attempts.wait_after(error, retryable=self._resumption.may_ask_again(error))
        if wait is None:
            raise error from None
        if self._on_retry is not None:
            self._on_retry(error, wait)
        if self._resumption.is_ghost(error):
            with contextlib.suppress(ColibriError):  # the next attempt tells what is wrong
                self._abort(self.request_id)
        if self._closed.wait(wait):
            raise self._cancelled()

    def _cancelled(self) -> Cancelled:
        return Cancelled(f"{self._resumption.target}: the stream was closed")

    def _cancel(self) -> None:
        call = self._call
        if call is not None:
            call.cancel()
