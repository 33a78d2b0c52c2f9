"""Room between the engine's steps for other services' large work, one piece at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from colibri.deadline import Clock, Deadline

#: Longest that a step waits for a piece, seconds. A piece that takes longer (it may wait for a worker that is lost)
#: goes on beside the steps.
STEP_WAIT_S = 0.1
#: Longest that a piece waits for a step, seconds: a step, too, may wait for a worker that is lost.
PIECE_WAIT_S = 1.0
#: The engine counts as busy for so long after a step, seconds: requests follow one another.
_BUSY_S = 0.25


class StepPauses:
    """Steps and pieces take turns where both want to run: one step, one piece. Thread-safe.

    A step computes all layers on the processors that a large piece of other work would take. Beside it, each of its
    layers would wait for such a piece; between two steps it waits for one.
    """

    def __init__(
        self,
        step_wait_s: float = STEP_WAIT_S,
        piece_wait_s: float = PIECE_WAIT_S,
        clock: Clock = time.monotonic,
    ) -> None:
        self._step_wait_s = step_wait_s
        self._piece_wait_s = piece_wait_s
        self._clock = clock
        self._changed = threading.Condition()
        self._stepping = False
        self._step_waits = False
        self._stepped_at: float | None = None
        self._piece: object | None = None
        self._pieces_wait = 0
        #: A piece goes next, where one waits.
        self._owed = False

    @property
    def busy(self) -> bool:
        """Whether the engine computes, or did a moment ago."""
        at = self._stepped_at
        return self._stepping or (at is not None and self._clock() - at < _BUSY_S)

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step of the engine, by its one thread."""
        with self._changed:
            self._step_waits = True
            if not self._changed.wait_for(self._step_may_run, self._step_wait_s):
                self._piece, self._owed = None, False
            self._step_waits = False
            self._stepping = True
        try:
            yield
        finally:
            with self._changed:
                self._stepping = False
                self._stepped_at = self._clock()
                self._owed = True
                self._changed.notify_all()

    @contextmanager
    def piece(self, deadline: Deadline) -> Iterator[None]:
        """A piece of other work. It begins in any case, at the deadline at the latest."""
        mine = object()
        with self._changed:
            self._pieces_wait += 1
            try:
                self._changed.wait_for(self._piece_may_run, deadline.bound(self._piece_wait_s))
            finally:
                self._pieces_wait -= 1
            self._piece, self._owed = mine, False
        try:
            yield
        finally:
            with self._changed:
                if self._piece is mine:
                    self._piece = None
                self._changed.notify_all()

    def _step_may_run(self) -> bool:
        return self._piece is None and not (self._owed and self._pieces_wait)

    def _piece_may_run(self) -> bool:
        return self._piece is None and not self._stepping and (self._owed or not self._step_waits)
