"""Deadlines: absolute monotonic times inside a process, remaining time between processes, whose clocks differ."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline. at: seconds on the monotonic clock; None: none."""

    at: float | None = None

    @classmethod
    def after(cls, seconds: float | None, clock: Clock = time.monotonic) -> Deadline:
        """`seconds` from now; None gives no deadline."""
        return cls(None if seconds is None else clock() + seconds)

    @classmethod
    def from_remaining_us(cls, remaining_us: int, arrived: float) -> Deadline:
        """Reads the wire's value: microseconds left at monotonic time `arrived`; 0: no deadline."""
        return cls(arrived + remaining_us * 1e-6 if remaining_us else None)

    def remaining(self, clock: Clock = time.monotonic) -> float | None:
        """Returns the seconds left, never below 0; None without a deadline."""
        return None if self.at is None else max(0.0, self.at - clock())

    def remaining_us(self, clock: Clock = time.monotonic) -> int:
        """Returns the wire's value: microseconds left, at least 1 with a deadline, 0 without."""
        return 0 if self.at is None else max(1, int((self.at - clock()) * 1e6))

    def expired(self, clock: Clock = time.monotonic) -> bool:
        return self.at is not None and clock() >= self.at

    def bound(self, seconds: float, clock: Clock = time.monotonic) -> float:
        """Returns how long a wait bounded by `seconds` may last: the smaller of both, never below 0."""
        remaining = self.remaining(clock)
        return seconds if remaining is None else min(seconds, remaining)

    def earlier(self, other: Deadline) -> Deadline:
        """Returns the one that ends first."""
        if self.at is None:
            return other
        return self if other.at is None or self.at <= other.at else other
