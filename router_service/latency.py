"""Measure how long a worker's answers take, and decide when a message is late and when it is lost.

Kept for each worker by message size, in powers of two of its entries. Nothing here reads a clock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence

from colibri.router_service.policy import FailoverPolicy

#: Answers that count: the last so many of a size.
SAMPLES = 256
#: Of them, those whose time of arrival is known (see Window.add).
EXACT_SAMPLES = 64
#: Fewer measure nothing.
WARM_SAMPLES = 16
#: Bounds are computed anew after so many answers.
_REFRESH = 64
#: Exact answers that make a median.
_ENOUGH = 8
#: Sizes: entries of one message are below 2^29 (FrameLimits).
_SIZES = 30
#: Without any measurement, so many entries are given the cold deadline, and larger messages more in proportion.
_COLD_ENTRIES = 32


def quantile(values: Sequence[float], q: float) -> float:
    """Returns the smallest value with at least the share `q` of all values at or below it; 0 if there are none."""
    ordered = sorted(values)
    return ordered[math.ceil(q * (len(ordered) - 1))] if ordered else 0.0


class Window:
    """The last answers to messages of one size, in seconds. hedge_after, deadline_after: counted from sending."""

    __slots__ = (
        "_exact",
        "_forgotten",
        "_measured",
        "_model",
        "count",
        "deadline_after",
        "exact_count",
        "hedge_after",
        "size",
    )

    def __init__(self, model: LatencyModel, size: int) -> None:
        self._model = model
        self.size = size
        self._measured = [0.0] * SAMPLES
        self._exact = [0.0] * EXACT_SAMPLES
        self.count = 0
        self.exact_count = 0
        self._forgotten = 0
        self.hedge_after = math.inf
        self.deadline_after = math.inf

    def add(self, seconds: float, exact: bool) -> None:
        """Adds an answer. Threads may race, so a sample may get lost.

        seconds: from sending to the answer.
        exact: a thread was waiting when the answer came. Otherwise it lay unread, perhaps for long, and `seconds`
            is only an upper bound: it counts for the bounds, but is no evidence of slowness.
        """
        count = self.count
        self._measured[count & (SAMPLES - 1)] = seconds
        if exact:
            self._exact[self.exact_count & (EXACT_SAMPLES - 1)] = seconds
            self.exact_count += 1
        self.count = count = count + 1
        if count % _REFRESH == WARM_SAMPLES:
            self._model.refresh(self)

    def measured(self) -> list[float]:
        return self._measured[: self.count]

    def last_exact(self, most: int) -> list[float]:
        """Returns up to `most` of the last exact answers, in any order."""
        count = self.exact_count
        first = max(self._forgotten, count - min(most, EXACT_SAMPLES))
        return [self._exact[n % EXACT_SAMPLES] for n in range(first, count)]

    def median(self) -> float:
        """Returns the median of the exact answers; 0 if there are too few."""
        exact = self.last_exact(EXACT_SAMPLES)
        return quantile(exact, 0.5) if len(exact) >= _ENOUGH else 0.0

    def forget_exact(self) -> None:
        """Forgets the exact answers so far: they are no evidence any more.

        The count goes on: a thread that is adding to it now would otherwise bring back what was forgotten.
        """
        self._forgotten = self.exact_count


class LatencyModel:
    """One worker's windows, by `entries.bit_length()`.

    A size without enough answers is judged by the nearest smaller size, as if time grew with the entries, and at
    least as an unmeasured one; without a smaller size by the next larger one, which takes longer. Any thread may
    add to a window or read bounds; a lock protects what is measured over all sizes.

    expected: 99th percentiles of similar workers by size, seconds; used until this one has answered often enough.
    """

    def __init__(self, policy: FailoverPolicy, expected: Mapping[int, float] | None = None) -> None:
        self._policy = policy
        self._expected = dict(expected or {})
        self._lock = threading.Lock()
        #: 99th percentile of each size that was measured. Of the lock.
        self._usual: dict[int, float] = {}
        self.windows = tuple(Window(self, size) for size in range(_SIZES))
        with self._lock:
            self._bound_cold()

    def usual(self) -> dict[int, float]:
        """Returns the 99th percentile of each size that was measured, seconds."""
        with self._lock:
            return dict(self._usual)

    def refresh(self, window: Window) -> None:
        """Computes a size's bounds from its last answers, and now and then those of unmeasured sizes."""
        usual = quantile(window.measured(), 0.99)
        with self._lock:
            self._usual[window.size] = usual
            window.hedge_after, window.deadline_after = self._bounds(usual, 0.0)
            if window.count % SAMPLES == WARM_SAMPLES:
                self._bound_cold()

    def forget_exact(self) -> None:
        for window in self.windows:
            window.forget_exact()

    def percentile(self, q: float) -> float:
        """Returns a percentile over the answers of all sizes, seconds; 0 before any."""
        return quantile([value for window in self.windows for value in window.measured()], q)

    def _bound_cold(self) -> None:
        """Computes the bounds of unmeasured sizes. The caller holds the lock."""
        measured = self._usual
        cold = self._policy.deadline_cold_s
        for size, window in enumerate(self.windows):
            if size in measured:
                continue
            smaller = max((other for other in measured if other < size), default=None)
            if size in self._expected:
                bounds = self._bounds(self._expected[size], 0.0)
            elif smaller is not None:
                bounds = self._bounds(measured[smaller] * 2.0 ** (size - smaller), cold)
            elif measured:
                bounds = self._bounds(measured[min(measured)], cold)
            else:
                bounds = math.inf, self._bounds(0.0, cold * max(1.0, 2.0**size / _COLD_ENTRIES))[1]
            window.hedge_after, window.deadline_after = bounds

    def _bounds(self, usual_s: float, least_s: float) -> tuple[float, float]:
        policy = self._policy
        if not policy.failover:
            return math.inf, policy.deadline_ceiling_s
        late = max(1.5 * usual_s, policy.hedge_floor_s)
        lost = max(6.0 * usual_s, policy.deadline_floor_s, least_s)
        return late, min(lost, policy.deadline_ceiling_s)
