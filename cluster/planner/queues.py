"""One layer's workers by what they have too much, and by what they lack: heaps, whose entries that are out of date are
passed over."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from colibri.cluster.planner.layout import Layout
from colibri.sharing import SLACK, Levelling


class Queues:
    """even: each worker's part, `least` times that by speed; full: workers that lack some, but have no room."""

    def __init__(self, level: Levelling, layout: Layout) -> None:
        self._level = level
        self._layout = layout
        # An expert is on a host once: what all hosts together can take of the hottest may be less than an even part.
        widest: dict[int, float] = {}
        for host, speed in zip(layout.hosts, layout.speeds, strict=True):
            widest[host] = max(speed, widest.get(host, 0.0))
        least = max(level.loads) / sum(widest.values()) * sum(layout.speeds) / sum(level.loads)
        self.full: set[int] = set()
        #: -load / part, and load - part.
        self._over: list[tuple[float, int]] = []
        self._under: list[list[tuple[float, int, int]]] = []
        self._hosts: list[tuple[float, int, int]] = []
        self.aim(max(1.0, least))

    def lacks(self, worker: int) -> bool:
        return self._level.load[worker] < self.even[worker] * (1 - SLACK)

    def open_part(self) -> float:
        """Load over even part of all but those that lack some and have no room."""
        level = self._level
        able = [w for w in level.workers if w not in self.full or level.load[w] >= self.even[w]]
        return sum(level.load[w] for w in able) / (sum(self.even[w] for w in able) or 1.0)

    def aim(self, least: float) -> None:
        """Parts are `least` times the even ones from now on."""
        level, layout = self._level, self._layout
        self.least = least
        self.even = [least * even for even in level.even]
        self.full = set()
        self._over = [(-level.load[w] / self.even[w], w) for w in level.workers if self.even[w]]
        self._under = [[] for _ in range(1 + max(layout.hosts))]
        for w in level.workers:
            self._under[layout.hosts[w]].append((level.load[w] - self.even[w], layout.counts[w], w))
        for heap in self._under:
            heapq.heapify(heap)
        self._hosts = [(*heap[0][:2], host) for host, heap in enumerate(self._under) if heap]
        heapq.heapify(self._over)
        heapq.heapify(self._hosts)

    def top(self) -> float:
        """The largest of load / even part."""
        level, over = self._level, self._over
        while over and -over[0][0] != level.load[over[0][1]] / self.even[over[0][1]]:
            heapq.heappop(over)
        return -over[0][0] if over else 1.0

    def fullest(self, goal: float) -> int | None:
        """A worker with the most, if that is above `goal` of its part."""
        return self._over[0][1] if self.top() > goal else None

    def emptiest(self) -> int | None:
        """The worker that lacks most, of those the one that holds least; its host is off the heap until it is
        `back`."""
        while self._hosts:
            *lack, host = heapq.heappop(self._hosts)
            entry = self._best_of(host)
            if entry is None:
                continue
            if list(entry[:2]) == lack:
                return entry[2] if entry[0] < 0 else None
            heapq.heappush(self._hosts, (*entry[:2], host))
        return None

    def _best_of(self, host: int) -> tuple[float, int, int] | None:
        level, heap = self._level, self._under[host]
        while heap and heap[0][0] != level.load[heap[0][2]] - self.even[heap[0][2]]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def back(self, workers: Iterable[int]) -> None:
        for host in {self._layout.hosts[worker] for worker in workers}:
            entry = self._best_of(host)
            if entry is not None:
                heapq.heappush(self._hosts, (*entry[:2], host))

    def shut(self, worker: int) -> None:
        """`emptiest` has named it, but it has no room, nor will it have any for this layer."""
        heapq.heappop(self._under[self._layout.hosts[worker]])
        self.full.add(worker)
        self.back([worker])

    def touched(self, *workers: int) -> None:
        """Their loads have changed."""
        level = self._level
        for worker in workers:
            if self.even[worker]:
                heapq.heappush(self._over, (-level.load[worker] / self.even[worker], worker))
            entry = (level.load[worker] - self.even[worker], self._layout.counts[worker], worker)
            heapq.heappush(self._under[self._layout.hosts[worker]], entry)
