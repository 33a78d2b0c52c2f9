"""When a late message may also be sent elsewhere: seldom, and not when load is what makes it late.

Workers that stand in for each other compute the same bits: all holders of an expert have one expert_numerics_id
(colibri.numerics_homes), which the handshake compares, so every message may be hedged by whoever holds its experts.
"""

from __future__ import annotations

import threading

#: A queue grows when its recent time is this many times the usual one, and this much above it.
_GROWTH, _GROWTH_US = 4.0, 2000.0


class HedgeBudget:
    """Token bucket: each message sent earns `share` of a hedge; at most `burst` are saved up. Thread-safe."""

    def __init__(self, share: float, burst: float) -> None:
        self._share = share
        self._burst = burst
        self._tokens = burst if share else 0.0
        self._seen = 0
        self._lock = threading.Lock()

    def take(self, messages: int, cost: int) -> bool:
        """Whether `cost` more messages may leave as a hedge. messages: all that were ever sent."""
        with self._lock:
            earned = max(0, messages - self._seen) * self._share
            self._seen = max(self._seen, messages)
            self._tokens = min(self._burst, self._tokens + earned)
            if self._tokens < cost:
                return False
            self._tokens -= cost
            return True


class QueueTrend:
    """The time that requests wait in a worker's queue, as its replies tell: recent against usual. Threads may race: an
    answer may not count."""

    __slots__ = ("recent_us", "usual_us")

    def __init__(self) -> None:
        self.recent_us = 0.0
        self.usual_us = 0.0

    def add(self, queue_us: int) -> None:
        self.recent_us += (queue_us - self.recent_us) * 0.25
        self.usual_us += (queue_us - self.usual_us) * 0.01

    @property
    def grows(self) -> bool:
        return self.recent_us > self.usual_us * _GROWTH and self.recent_us > self.usual_us + _GROWTH_US
