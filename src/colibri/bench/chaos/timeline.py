"""What happened when: a thread-safe list of moments, in seconds from the start of the run."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass

from colibri.deadline import Clock


class MomentKind(enum.Enum):
    PHASE = "phase"
    EVENT = "event"  # something was broken or changed
    UNDO = "undo"  # ... and put right again
    SEEN = "seen"  # the deployment's own doing
    FAILED = "failed"  # an event that could not be done


@dataclass(frozen=True, slots=True)
class Moment:
    """at: monotonic; at_s: from the run's start; action: the plan's word for events and undos; worker: whom
    it is about, or empty; number: of the scheduled event that it belongs to."""

    at: float
    at_s: float
    kind: MomentKind
    action: str
    worker: str
    text: str
    number: int | None = None

    def line(self) -> str:
        return f"{self.at_s:8.3f} s  {self.kind.value:<6} {self.text}"


class Timeline:
    """`heard` is called with each moment, on the thread that noted it."""

    def __init__(self, clock: Clock, heard: Callable[[Moment], None] = lambda moment: None) -> None:
        self._clock = clock
        self._heard = heard
        self._lock = threading.Lock()
        self._moments: list[Moment] = []
        self.started = clock()

    def restart(self) -> None:
        """The run starts now; moments before it keep negative times."""
        self.started = self._clock()

    def note(
        self, kind: MomentKind, text: str, *, action: str = "", worker: str = "", number: int | None = None
    ) -> Moment:
        at = self._clock()
        moment = Moment(at, at - self.started, kind, action, worker, text, number)
        with self._lock:
            self._moments.append(moment)
        self._heard(moment)
        return moment

    def moments(self) -> tuple[Moment, ...]:
        with self._lock:
            return tuple(self._moments)
