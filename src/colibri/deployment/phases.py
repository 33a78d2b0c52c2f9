"""Measure where the time until the first token went: marks on a clock that starts with the process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def process_age_s(proc: Path = Path("/proc"), boottime: Callable[[], float] | None = None) -> float:
    """Returns the seconds since the kernel started this process (field 22 of /proc/self/stat, in clock ticks; man 5
    proc).
    """
    now = boottime() if boottime else time.clock_gettime(time.CLOCK_BOOTTIME)
    fields = (proc / "self/stat").read_text().rpartition(")")[2].split()
    return max(0.0, now - int(fields[19]) / os.sysconf("SC_CLK_TCK"))


class Phases:
    """The phases of a start. `mark` ends a phase; only its first mark counts. Several threads may mark."""

    def __init__(self, age_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._origin = clock() - age_s
        self._marks: dict[str, float] = {}

    def mark(self, name: str) -> None:
        self._marks.setdefault(name, self._clock() - self._origin)

    def since_start(self) -> dict[str, float]:
        """Returns name -> seconds from the start of the process to the end of that phase, in order of time."""
        return dict(sorted(self._marks.items(), key=lambda mark: mark[1]))

    def lines(self) -> list[str]:
        """Returns a table for people: each phase's own time, and the time since the start, in seconds."""
        rows, before = [], 0.0
        for name, at in self.since_start().items():
            rows.append(f"{name:<16} {at - before:>7.2f} s   at {at:>6.2f} s")
            before = at
        return rows
