"""Many rows in pieces: beside an engine whose answers run, a large call computes a little between two steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from colibri.deadline import Clock, Deadline
from colibri.rpc.turns import Turns, Waiter

#: Rows of a call that runs at once, beside others. More are a large call.
SMALL_ROWS = 64
#: How long a piece should take, seconds, about: what it adds to the time between two tokens of an answer.
_PIECE_S = 0.04
#: Weight of the last piece in the running mean.
_NEWEST = 0.5
#: Large calls are bounded by the server's places alone.
_ANY_NUMBER = 1 << 30

T = TypeVar("T")


class Pauses(Protocol):
    """What large calls ask of an engine beside them; colibri.coordinator.scheduling.step_pauses.StepPauses is one."""

    @property
    def busy(self) -> bool: ...

    def piece(self, deadline: Deadline) -> AbstractContextManager[None]:
        """Holds the processors for one piece, between two steps. Bounded waits."""
        ...


class Pieces:
    """Large calls of one service, beside an engine. Thread-safe.

    Their pieces are computed one at a time, callers in turn, each between two steps while the engine is busy. The
    division into pieces changes time, never bits.

    pauses: of the engine.
    most_rows: of one piece.
    clock: seconds.
    """

    def __init__(self, pauses: Pauses, most_rows: int, clock: Clock) -> None:
        self._pauses = pauses
        self._most_rows = most_rows
        self._clock = clock
        self._turns = Turns("large Router calls", _ANY_NUMBER, _ANY_NUMBER)
        self._row_s: float | None = None

    def run(self, rows: int, waiter: Waiter, compute: Callable[[int, int], T]) -> list[T]:
        """What `compute(first, end)` gives for each piece, in order of rows.

        Raises what it raises, and what Turns.turn does.
        """
        results: list[T] = []
        first = 0
        while first < rows:
            with self._turns.turn(waiter), self._pauses.piece(waiter.deadline):
                end = min(rows, first + self._rows())
                begun = self._clock()
                results.append(compute(first, end))
                self._measured(end - first, self._clock() - begun)
            first = end
        return results

    def _rows(self) -> int:
        """Of the next piece; called by whoever holds the turn."""
        if not self._pauses.busy:
            return self._most_rows
        if not self._row_s:
            return min(SMALL_ROWS, self._most_rows)
        return min(self._most_rows, max(SMALL_ROWS, int(_PIECE_S / self._row_s)))

    def _measured(self, rows: int, seconds: float) -> None:
        newest = seconds / rows
        self._row_s = newest if self._row_s is None else self._row_s + _NEWEST * (newest - self._row_s)
