"""Decide when to retry something that failed."""

from __future__ import annotations

from colibri.deadline import Clock


class Retry:
    """Retries at once if circumstances changed, else after a wait that doubles from failure to failure."""

    def __init__(self, first_s: float, longest_s: float, clock: Clock) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._clock = clock
        self._wait_s = 0.0
        self._at = 0.0
        self._failed_at: tuple[object, ...] | None = None

    def may(self, *circumstances: object) -> bool:
        """Whether to try now. Circumstances are compared by identity."""
        failed_at = self._failed_at
        if failed_at is None or self._clock() >= self._at or len(failed_at) != len(circumstances):
            return True
        return any(a is not b for a, b in zip(failed_at, circumstances, strict=True))

    def failed(self, *circumstances: object) -> float:
        """Notes a failure. Returns the wait, in seconds."""
        self._failed_at = circumstances
        self._wait_s = min(max(2 * self._wait_s, self._first_s), self._longest_s)
        self._at = self._clock() + self._wait_s
        return self._wait_s

    def succeeded(self) -> None:
        self._failed_at = None
        self._wait_s = 0.0
