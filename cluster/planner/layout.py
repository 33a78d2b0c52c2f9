"""A placement while it is planned: holders by worker index, and the room that is left. Only this package changes it."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from colibri.cluster.holders import Holders
from colibri.cluster.planner.problem import Problem

_NO_LIMIT = 1 << 60


class Layout:
    """holders[layer][expert]: indices into `names`; counts: copies by worker; rooms: those that it can hold; limits:
    up to which copies are added for balance, where memory is not limited (Problem.spare).

    Workers that are gone are left out of `holders` from the first, and so is what shares a host with an earlier
    holder."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.names = [worker.name for worker in problem.workers]
        self.speeds = [worker.speed for worker in problem.workers]
        hosts = {domain: index for index, domain in enumerate({w.domain: None for w in problem.workers})}
        self.hosts = [hosts[worker.domain] for worker in problem.workers]
        self.rooms = [_NO_LIMIT if room is None else room for room in map(problem.room, problem.workers)]
        index = {name: position for position, name in enumerate(self.names)}
        self.counts = [0] * len(self.names)
        self.holders: list[list[list[int]]] = []
        for layer, experts in enumerate(problem.holders):
            self.holders.append([])
            for names in experts:
                kept: list[int] = []
                for name in names:
                    worker = index.get(name)
                    if worker is not None and self.apart(kept, worker):
                        kept.append(worker)
                        self.counts[worker] += 1
                self.holders[layer].append(kept)
        share = problem.layers * problem.experts * problem.replicas / len(self.names)
        extra = (
            max(problem.spare * share, 2 * problem.layers * (1 - 1 / len(self.names))) if problem.spare else 0
        )
        self.limits = [min(room, ceil(share + extra)) for room in self.rooms]

    def apart(self, holders: Iterable[int], worker: int) -> bool:
        """Whether it is on another host than each of them."""
        host = self.hosts[worker]
        return all(self.hosts[other] != host for other in holders)

    def wanted(self, layer: int, expert: int) -> int:
        """Copies: as many as asked for; a pinned expert has as many as it had, where there are so many hosts."""
        problem = self.problem
        if (layer, expert) in problem.pinned:
            return min(len(problem.holders[layer][expert]), len(set(self.hosts)))
        return problem.replicas

    def add(self, layer: int, expert: int, worker: int) -> None:
        self.holders[layer][expert].append(worker)
        self.counts[worker] += 1

    def drop(self, layer: int, expert: int, worker: int) -> None:
        self.holders[layer][expert].remove(worker)
        self.counts[worker] -= 1

    def result(self) -> Holders:
        names = self.names
        return tuple(
            tuple(tuple(names[worker] for worker in holders) for holders in experts)
            for experts in self.holders
        )
