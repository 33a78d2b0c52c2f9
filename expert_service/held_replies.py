"""Hold answers back so that others overtake them (a fault on purpose, faults.py)."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator

from colibri.deadline import Clock
from colibri.expert_service.queue import MessageId


class HeldReplies:
    """Belongs to the stream's thread. Another thread calls `wake` when an answer is due."""

    def __init__(self, wake: Callable[[], None], clock: Clock) -> None:
        self._wake = wake
        self._clock = clock
        self._held: list[tuple[float, int, MessageId, tuple[bytes, ...]]] = []
        self._timers: dict[int, threading.Timer] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, key: MessageId, frames: tuple[bytes, ...], seconds: float) -> None:
        self._count += 1
        heapq.heappush(self._held, (self._clock() + seconds, self._count, key, frames))
        timer = threading.Timer(seconds, self._wake)
        timer.daemon = True
        self._timers[self._count] = timer
        timer.start()

    def due(self) -> Iterator[tuple[MessageId, tuple[bytes, ...]]]:
        """Yields the answers that must leave now."""
        while self._held and self._held[0][0] <= self._clock():
            _, number, key, frames = heapq.heappop(self._held)
            del self._timers[number]
            yield key, frames

    def close(self) -> None:
        """Drops all held answers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._held.clear()
