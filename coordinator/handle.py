"""The two ends of a running request: the engine's thread puts tokens in, one reader takes events out.

Backpressure: the engine never waits for a reader. What a reader has not taken yet is merged into one Tokens
event, so a mailbox never holds more than the answer itself, which max_tokens bounds before anything is
allocated; there is no overflow. A reader that stays away too long is the servicer's business
(reader_watch).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from colibri.coordinator.request import GenerationRequest
from colibri.deadline import Clock
from colibri.errors import ColibriError
from colibri.generation import Accepted, Event, Finished, Tokens
from colibri.models.detokenizer import IncrementalDetokenizer

#: How long a reader waits before it looks whether the engine still lives.
_LOOK_S = 5.0


class RequestHandle:
    """What Engine.submit returns. One thread reads; `cancel` may be called from any."""

    def __init__(
        self,
        request: GenerationRequest,
        text: IncrementalDetokenizer | None,
        cancel: Callable[[RequestHandle], None],
        check_engine: Callable[[], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self.request = request
        self._text = text
        self._cancel = cancel
        self._check_engine = check_engine
        self._clock = clock
        self._changed = threading.Condition(threading.Lock())
        self._accepted = False
        self._ids: list[int] = []
        self._receipts: list[int] = []
        self._outcome: Finished | ColibriError | None = None
        self._left_at: float | None = clock()

    # Engine's side.

    def put(self, token: int, receipt: int) -> None:
        with self._changed:
            self._ids.append(token)
            self._receipts.append(receipt)
            self._changed.notify()

    def end(self, outcome: Finished | ColibriError) -> None:
        """The first call counts. Tokens that wait are still read before the outcome."""
        with self._changed:
            if self._outcome is None:
                self._outcome = outcome
                self._changed.notify()

    # Reader's side.

    def cancel(self) -> None:
        """Ends the request at the next step boundary with FinishReason.ABORT; without effect once it has
        ended.
        """
        self._cancel(self)

    def away_s(self) -> float:
        """Seconds since the reader took its last event and did not come back; 0 while it waits for one."""
        left_at = self._left_at
        return 0.0 if left_at is None else max(0.0, self._clock() - left_at)

    def next_event(self, timeout_s: float) -> Event | None:
        """The next event, or None when nothing came within `timeout_s` seconds. Raises what ended the
        request instead of an answer. Nothing may be asked after the Finished event or that error.
        """
        with self._changed:
            self._left_at = None
            try:
                if not self._accepted:
                    self._accepted = True
                    return Accepted(
                        self.request.request_id, len(self.request.prompt_ids), self.request.sampling.seed
                    )
                self._changed.wait_for(lambda: self._ids or self._outcome is not None, timeout_s)
                if self._ids:
                    ids, receipts = tuple(self._ids), tuple(self._receipts)
                    self._ids.clear()
                    self._receipts.clear()
                elif self._outcome is None:
                    return None
                elif isinstance(self._outcome, ColibriError):
                    # Requests of one step share the error; without this its traceback would grow with each.
                    raise self._outcome.with_traceback(None)
                else:
                    return self._outcome
            finally:
                self._left_at = self._clock()
        return Tokens(ids, receipts, self._text_of(ids))

    def events(self) -> Iterator[Event]:
        """All events up to Finished. Raises what ended the request instead. Leaving the iterator cancels
        the request.
        """
        try:
            while True:
                event = self.next_event(_LOOK_S)
                if event is None:
                    self._check_engine()
                    continue
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self._cancel(self)

    def _text_of(self, ids: tuple[int, ...]) -> str:
        """An unfinished character at the end is left out: a resumed answer goes on with it."""
        text = self._text
        if text is None:
            return ""
        return "".join(text.push(token) for token in ids if token not in self.request.stop_ids)
