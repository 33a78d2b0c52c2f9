"""The two ends of a running request: the engine's thread puts tokens in, one reader takes events out.

The engine never waits for a reader. What a reader has not taken yet is merged into one Tokens event per choice. So
a mailbox never holds more than the answer itself, which max_tokens bounds before anything is allocated. The
servicer handles readers that stay away too long (reader_watch).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from colibri.coordinator.answer_text import AnswerText
from colibri.coordinator.request import GenerationRequest
from colibri.deadline import Clock
from colibri.errors import ColibriError
from colibri.generation import Accepted, Event, Finished, Prompt, TokenLogprobs, Tokens

#: How long a reader waits before it looks whether the engine still lives.
_LOOK_S = 5.0
#: Tokens of one event, so that a reader that lagged behind gets no message beyond gRPC's limit (4 MiB).
MAX_EVENT_TOKENS = 4096

_T = TypeVar("_T")


class _Mail:
    """What the reader has not taken of one choice.

    text: None without a tokenizer.
    pieces: text that the engine has decoded already.
    """

    __slots__ = ("ended", "ids", "logprobs", "outcome", "pieces", "receipts", "text")

    def __init__(self, text: AnswerText | None) -> None:
        self.text = text
        self.ids: list[int] = []
        self.receipts: list[int] = []
        self.pieces: list[str] = []
        self.logprobs: list[TokenLogprobs] = []
        self.outcome: Finished | None = None
        self.ended = False


class RequestHandle:
    """What Engine.submit returns. One thread reads; any thread may `cancel`.

    texts: one per choice, in the state in which the answer begins or resumes.
    """

    def __init__(
        self,
        request: GenerationRequest,
        texts: Sequence[AnswerText | None],
        cancel: Callable[[RequestHandle], None],
        check_engine: Callable[[], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self.request = request
        self._cancel = cancel
        self._check_engine = check_engine
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._accepted = False
        self._prompt: Prompt | None = None
        self._mail = [_Mail(text) for text in texts]
        self._next_choice_index = 0
        self._open = len(self._mail)
        self._error: ColibriError | None = None
        self._left_at: float | None = clock()

    # Engine's side.

    def put_prompt(self, prompt: Prompt) -> None:
        """Delivers the prompt, before any token."""
        with self._changed:
            self._prompt = prompt
            self._changed.notify()

    def put(
        self,
        token: int,
        receipt: int,
        choice_index: int = 0,
        piece: str | None = None,
        logprobs: TokenLogprobs | None = None,
    ) -> None:
        """Delivers a token. piece: its text, if known already."""
        mail = self._mail[choice_index]
        with self._changed:
            mail.ids.append(token)
            mail.receipts.append(receipt)
            if piece is not None:
                mail.pieces.append(piece)
            if logprobs is not None:
                mail.logprobs.append(logprobs)
            self._changed.notify()

    def finish(self, outcome: Finished, choice_index: int = 0) -> None:
        """Ends a choice; only the first call counts. The reader still gets the tokens that wait."""
        mail = self._mail[choice_index]
        with self._changed:
            if not mail.ended:
                mail.ended = True
                mail.outcome = outcome
                self._changed.notify()

    def fail(self, error: ColibriError) -> None:
        """Ends the request; only the first call counts. The reader still gets what waits."""
        with self._changed:
            if self._error is None:
                self._error = error
                self._changed.notify()

    # Reader's side.

    @property
    def ended(self) -> bool:
        """Whether the last event has been taken."""
        return self._open == 0

    def cancel(self) -> None:
        """Ends the request at the next step boundary with FinishReason.ABORT; does nothing if it has ended."""
        self._cancel(self)

    def away_s(self) -> float:
        """Returns the seconds since the reader took its last event and did not come back; 0 while it waits for one."""
        left_at = self._left_at
        return 0.0 if left_at is None else max(0.0, self._clock() - left_at)

    def next_event(self, timeout_s: float) -> Event | None:
        """Returns the next event; None if none came within `timeout_s` seconds. Raises the error that ended the
        request.

        Ask no more after that error or the last choice's Finished event.
        """
        with self._changed:
            self._left_at = None
            try:
                if not self._accepted:
                    self._accepted = True
                    return Accepted(
                        self.request.request_id, len(self.request.prompt_ids), self.request.sampling.seed
                    )
                self._changed.wait_for(self._has_news, timeout_s)
                if self._prompt is not None:
                    prompt, self._prompt = self._prompt, None
                    return prompt
                choice_index = self._next_choice()
                if choice_index is None:
                    if self._error is None:
                        return None
                    # Requests of one step share the error; without this its traceback would grow with each.
                    raise self._error.with_traceback(None)
                mail = self._mail[choice_index]
                self._next_choice_index = choice_index + 1
                ids, receipts, logprobs = _taken(mail.ids), _taken(mail.receipts), _taken(mail.logprobs)
                pieces, outcome = _taken(mail.pieces), mail.outcome
            finally:
                self._left_at = self._clock()
        choice = self.request.sampling.choice + choice_index
        if ids:
            return Tokens(ids, receipts, self._text_of(mail, ids, pieces), choice, logprobs)
        if mail.text is not None and (held := mail.text.finish()):
            return Tokens((), (), held, choice)
        mail.outcome = None
        self._open -= 1
        return outcome

    def poll(self, timeout_s: float) -> Event | None:
        """As `next_event`. Raises ColibriError where nothing came and the engine has ended."""
        event = self.next_event(timeout_s)
        if event is None:
            self._check_engine()
        return event

    def events(self) -> Iterator[Event]:
        """Yields all events up to the last Finished. Raises the error that ended the request.

        Leaving the iterator cancels the request.
        """
        try:
            while not self.ended:
                event = self.poll(_LOOK_S)
                if event is not None:
                    yield event
        finally:
            self._cancel(self)

    def _has_news(self) -> bool:
        return self._error is not None or self._prompt is not None or self._next_choice() is not None

    def _next_choice(self) -> int | None:
        """Returns a choice that has something to deliver; choices take turns."""
        count = len(self._mail)
        for step in range(count):
            choice_index = (self._next_choice_index + step) % count
            mail = self._mail[choice_index]
            if mail.ids or mail.outcome is not None:
                return choice_index
        return None

    def _text_of(self, mail: _Mail, ids: tuple[int, ...], pieces: tuple[str, ...]) -> str:
        """Returns the text of some ids. With stop strings the engine has decoded it; else this thread does, beside the
        engine's.
        """
        if mail.text is None or self.request.stop:
            return "".join(pieces)
        return "".join(map(mail.text.push, ids))


def _taken(values: list[_T]) -> tuple[_T, ...]:
    """Removes the first few values from the list and returns them."""
    found = tuple(values[:MAX_EVENT_TOKENS])
    del values[:MAX_EVENT_TOKENS]
    return found
