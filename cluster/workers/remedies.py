"""Decide what to do about a worker whose state is wrong: correct it in place, else restart it, else leave it out for a
while.

Pure, except for its memory. All three have bounds, so that nothing goes on for ever at full speed.
"""

from __future__ import annotations

import enum
from collections import deque

from colibri.deadline import Clock

#: A worker that was put right so often within so many seconds is put right only every `PACE_S` from then on.
MOST_MENDS, WINDOW_S, PACE_S = 60, 60.0, 2.0
#: Tries in a row that changed nothing before the worker is started anew.
TRIES = 3
#: Starts for that reason, within so many seconds, before it is left out for so long that others get its share.
MOST_STARTS, STARTS_WINDOW_S, OUT_S = 3, 300.0, 60.0


class Remedy(enum.Enum):
    """MEND: correct it now. WAIT: later. RESTART: nothing else is left."""

    MEND = enum.auto()
    WAIT = enum.auto()
    RESTART = enum.auto()


class Remedies:
    """The remedies for one worker, over all its incarnations. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mends: deque[float] = deque(maxlen=MOST_MENDS)
        self._starts: deque[float] = deque(maxlen=MOST_STARTS)
        self._failed = 0

    def next(self, hopeless: bool) -> Remedy:
        """Returns what to do. hopeless: nothing can be corrected in place."""
        if hopeless or self._failed >= TRIES:
            return Remedy.RESTART
        now, mends = self._clock(), self._mends
        often = len(mends) == MOST_MENDS and now - mends[0] < WINDOW_S
        return Remedy.WAIT if often and now - mends[-1] < PACE_S else Remedy.MEND

    def mended(self) -> None:
        self._mends.append(self._clock())
        self._failed = 0

    def failed(self) -> None:
        self._mends.append(self._clock())
        self._failed += 1

    def restarted(self) -> float:
        """Notes a restart. Returns the least pause before it, seconds."""
        now, starts = self._clock(), self._starts
        often = len(starts) == MOST_STARTS and now - starts[0] < STARTS_WINDOW_S
        starts.append(now)
        self._failed = 0
        return OUT_S if often else 0.0
