"""The events of an answer as they come, for ordinary code and for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Self

from colibri.client.answer import Answer, Answers, collect
from colibri.coordinator.handle import RequestHandle
from colibri.deadline import Deadline
from colibri.errors import ColibriError, DeadlineExpired, ShuttingDown
from colibri.generation import Event, Tokens

#: One wait for an event; the interpreter's exit waits for it, too.
_LOOK_S = 1.0
#: The engine ends a request that is over its time between two steps; a step may last so long.
_STEP_S = 60.0


class Reading:
    """What both streams read: the handle, and how long its answer may take.

    timeout_s: seconds of the request, as its engine knows them.
    """

    def __init__(self, handle: RequestHandle, timeout_s: float) -> None:
        self._handle = handle
        self._until = Deadline.after(timeout_s + _STEP_S)
        self._failed: ColibriError | None = None
        self._lock = threading.Lock()  # a read that was cancelled may still be waiting

    @property
    def ended(self) -> bool:
        return self._handle.ended and self._failed is None

    def wait(self) -> Event | None:
        """Returns the next event. None: nothing came for a while, or the last one has been returned.

        Raises what ended the answer, again at each call; DeadlineExpired when the engine stays silent.
        """
        with self._lock:
            return self._next()

    def cancel(self) -> None:
        """Ends the answer at its next step, from any thread."""
        self._handle.cancel()

    def _next(self) -> Event | None:
        if self._failed is not None:
            raise self._failed
        if self._handle.ended:
            return None
        try:
            event = self._handle.poll(_LOOK_S)
            if event is None and self._until.expired():
                self._handle.cancel()
                raise DeadlineExpired(
                    f"engine: request {self._handle.request.request_id} has not ended {_STEP_S:g} s after its time",
                    peer="engine",
                )
        except ColibriError as error:
            self._failed = error
            raise
        return event


class Stream(Iterator[Event]):
    """Accepted, Tokens, ..., Finished (one for each choice). Read by one thread.

    Closing it before the end aborts the answer; so does dropping it.
    """

    def __init__(self, reading: Reading, request_id: str) -> None:
        self._reading = reading
        self.request_id = request_id

    def __next__(self) -> Event:
        """Returns the next event. Raises ColibriError when the answer fails or its time ends."""
        while not self._reading.ended:
            event = self._reading.wait()
            if event is not None:
                return event
        raise StopIteration

    def text(self) -> Iterator[str]:
        """Yields the rest of the text of all choices, in the pieces in which it comes."""
        for event in self:
            if isinstance(event, Tokens) and event.text:
                yield event.text

    def answers(self) -> list[Answer]:
        """Reads the rest and returns one Answer for each choice."""
        return collect(self).all()

    def answer(self) -> Answer:
        """Reads the rest and returns the answer of a request of one choice."""
        return collect(self).only()

    def close(self) -> None:
        """Ends the answer at its next step, from any thread: its Finished says ABORT."""
        self._reading.cancel()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncStream(AsyncIterator[Event]):
    """As Stream, read by one task with `async for`. Cancelling that task while it reads aborts the answer.

    start: submits the request; called on a thread of `threads` when the first event is asked for.
    """

    def __init__(self, start: Callable[[], Reading], threads: Executor, request_id: str) -> None:
        self._start = start
        self._threads = threads
        self._reading: Reading | None = None
        self._closed = False
        self.request_id = request_id

    async def __anext__(self) -> Event:
        """Returns the next event. Raises ColibriError when the answer fails or its time ends."""
        try:
            while self._reading is None or not self._reading.ended:
                if self._reading is None and self._closed:
                    break
                event = await asyncio.wrap_future(self._begin_wait())
                if event is not None:
                    return event
        except asyncio.CancelledError:
            self.close()
            raise
        raise StopAsyncIteration

    async def text(self) -> AsyncIterator[str]:
        """Yields the rest of the text of all choices, in the pieces in which it comes."""
        async for event in self:
            if isinstance(event, Tokens) and event.text:
                yield event.text

    async def answers(self) -> list[Answer]:
        """Reads the rest and returns one Answer for each choice."""
        return (await self._collected()).all()

    async def answer(self) -> Answer:
        """Reads the rest and returns the answer of a request of one choice."""
        return (await self._collected()).only()

    def close(self) -> None:
        """Ends the answer at its next step: its Finished says ABORT."""
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()

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

    def _begin_wait(self) -> Future[Event | None]:
        try:
            return self._threads.submit(self._wait)
        except RuntimeError:
            raise ShuttingDown("this Colibri is closed") from None

    def _wait(self) -> Event | None:
        if self._reading is None:
            self._reading = self._start()
        if self._closed:  # perhaps before there was anything to cancel
            self._reading.cancel()
        return self._reading.wait()
