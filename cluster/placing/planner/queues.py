"""Order one layer's workers by what they have too much and what they lack: heaps that skip outdated entries."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from colibri.cluster.placing.planner.layout import Layout
from colibri.row_division import SLACK, Levelling


class Queues:
    """even: each worker's part, `least` times its even part by speed. full: workers that lack load but have no room."""

    def __init__(self, level: Levelling, layout: Layout) -> None:
        self._level = level
        self._layout = layout
        self.full: set[int] = set()
        #: -load / part, and load - part.
        self._over: list[tuple[float, int]] = []
        self._under: list[tuple[float, int, int]] = []
        #: Named by `emptiest` and not yet `back`.
        self._away: set[int] = set()
        self.aim(1.0)

    def lacks(self, worker: int) -> bool:
        return self._level.load[worker] < self.even[worker] * (1 - SLACK)

    def open_part(self) -> float:
        """Returns load over even part of all workers, except those that lack load but have no room."""
        level = self._level
        able = [w for w in level.workers if w not in self.full or level.load[w] >= self.even[w]]
        return sum(level.load[w] for w in able) / (sum(self.even[w] for w in able) or 1.0)

    def aim(self, least: float) -> None:
        """Sets the parts to `least` times the even ones."""
        level = self._level
        self.least = least
        self.even = [least * even for even in level.even]
        self.full, self._away = set(), set()
        self._over = [(-level.load[w] / self.even[w], w) for w in level.workers if self.even[w]]
        self._under = [self._entry(w) for w in level.workers]
        heapq.heapify(self._over)
        heapq.heapify(self._under)

    def top(self) -> float:
        """Returns the largest load over even part."""
        level, over = self._level, self._over
        while over and -over[0][0] != level.load[over[0][1]] / self.even[over[0][1]]:
            heapq.heappop(over)
        return -over[0][0] if over else 1.0

    def fullest(self, goal: float) -> int | None:
        """Returns a worker with the most load, if that is above `goal` times its part."""
        return self._over[0][1] if self.top() > goal else None

    def emptiest(self) -> int | None:
        """Returns the worker that lacks most; among equals, the one that holds least. It is returned once, until it is
        `back`.
        """
        while self._under:
            lack, _, worker = entry = heapq.heappop(self._under)
            if worker in self._away or lack != self._entry(worker)[0]:
                continue
            if lack >= 0:
                heapq.heappush(self._under, entry)
                return None
            self._away.add(worker)
            return worker
        return None

    def back(self, workers: Iterable[int]) -> None:
        for worker in workers:
            self._away.discard(worker)
            heapq.heappush(self._under, self._entry(worker))

    def shut(self, worker: int) -> None:
        """Says that the worker that `emptiest` returned has no room."""
        self.full.add(worker)

    def touched(self, *workers: int) -> None:
        """Says that these workers' loads have changed."""
        for worker in workers:
            if self.even[worker]:
                heapq.heappush(self._over, (-self._level.load[worker] / self.even[worker], worker))
            if worker in self.full:  # it may have room now
                self._away.discard(worker)
            heapq.heappush(self._under, self._entry(worker))

    def _entry(self, worker: int) -> tuple[float, int, int]:
        return self._level.load[worker] - self.even[worker], self._layout.counts[worker], worker
