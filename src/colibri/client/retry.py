"""Decide when to retry: only if the failure advises it, a bounded number of times, with growing waits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError, ConfigError


@dataclass(frozen=True, slots=True)
class Retry:
    """The bounds of retries, for `retry=` of a client or a call.

    Only retryable failures are retried: those that a server calls so, and connections that were refused or lost.
    News, that is a new token, resets both bounds.

    attempts: failures in a row.
    within_s: seconds since the last news, or since the call, after which nothing is retried. A restart of the
        server may take this long.
    first_wait_s, factor, longest_wait_s: the wait before attempt k is first_wait_s * factor^k, at most
        longest_wait_s. It is shortened at random, at most by half, and never below the server's advice
        (`retry_after_s`).
    """

    attempts: int = 1000
    within_s: float = 60.0
    first_wait_s: float = 0.05
    factor: float = 2.0
    longest_wait_s: float = 1.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ConfigError("retry.attempts", "at least 1", self.attempts)
        for name, low in (("within_s", 0.0), ("first_wait_s", 0.0), ("factor", 1.0), ("longest_wait_s", 0.0)):
            value = getattr(self, name)
            if not low <= value < float("inf"):
                raise ConfigError(f"retry.{name}", f"a finite number from {low:g} on", value)


class Attempts:
    """The attempts of one call. Not shared between threads."""

    def __init__(
        self,
        retry: Retry | None,
        deadline: Deadline,
        clock: Clock = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._retry = retry
        self._deadline = deadline
        self._clock = clock
        self._draw = draw
        self._failures = 0
        self._since = clock()

    @property
    def failures(self) -> int:
        """Failures in a row."""
        return self._failures

    def remaining_s(self) -> float | None:
        """What is left of the call's time, and so what the next attempt may take, seconds."""
        return self._deadline.remaining(self._clock)

    def news(self) -> None:
        """Resets the bounds: something new came."""
        self._failures = 0
        self._since = self._clock()

    def wait_after(self, error: ColibriError, *, retryable: bool | None = None) -> float | None:
        """Returns how long to wait before the retry, seconds; None: give up.

        retryable: the caller's own judgement, which overrides the error's.
        """
        retry = self._retry
        if retry is None or not (error.retryable if retryable is None else retryable):
            return None
        self._failures += 1
        if self._failures > retry.attempts:
            return None
        # A float's exponent is bounded, a failure count need not be.
        wait = retry.longest_wait_s
        if self._failures <= 64:
            wait = min(wait, retry.first_wait_s * retry.factor ** (self._failures - 1))
        wait = max(wait * (0.5 + 0.5 * self._draw()), error.retry_after_s or 0.0)
        until = self._clock() + wait
        if until > self._since + retry.within_s or Deadline(until).earlier(self._deadline).at != until:
            return None
        return wait
