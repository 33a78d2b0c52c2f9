"""A placement during planning: holders by worker index, and the room that is left. Only this package changes it."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from colibri.cluster.experts.holders import Holders
from colibri.cluster.placing.planner.problem import Problem

_NO_LIMIT = 1 << 60


class Layout:
    """The placement being planned.

    holders: [layer][expert] -> indices into `names`.
    counts: copies by worker.
    rooms: copies that each worker can hold.
    limits: copies up to which balancing may add, if memory is not limited (Problem.spare).

    Copies have two purposes. Redundancy wants some on different hosts (`wanted`). Load may put one on any worker,
    also beside another of its host. `holders` never contains workers that are gone. While loads are unknown it also
    leaves out copies that share a host with an earlier holder, unless they were put there by hand.
    """

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
            for expert, names in enumerate(experts):
                kept: list[int] = []
                beside = problem.loads is not None or (layer, expert) in problem.pinned
                for name in names:
                    worker = index.get(name)
                    if worker is not None and (beside or self.apart(kept, worker)):
                        kept.append(worker)
                        self.counts[worker] += 1
                self.holders[layer].append(kept)
        self.limits = self._limits()

    def apart(self, holders: Iterable[int], worker: int) -> bool:
        """Whether the worker is on another host than each holder."""
        host = self.hosts[worker]
        return all(self.hosts[other] != host for other in holders)

    def spread(self, holders: Iterable[int]) -> int:
        """Counts the hosts of the holders."""
        return len({self.hosts[worker] for worker in holders})

    def wanted(self, layer: int, expert: int) -> int:
        """Returns how many hosts must have a copy: as many as copies were asked for; for a pinned expert, as many as
        had one, if there are that many.
        """
        problem = self.problem
        if (layer, expert) in problem.pinned:
            present = self.holders[layer][expert]
            beside = len(present) - self.spread(present)
            return min(len(problem.holders[layer][expert]) - beside, len(set(self.hosts)))
        return problem.replicas

    def may_go(self, layer: int, expert: int, worker: int, but: int | None = None) -> bool:
        """Whether enough hosts have a copy without that worker's. but: assume a copy on this worker in its place."""
        holders, wanted = self.holders[layer][expert], self.wanted(layer, expert)
        if but is None and len(holders) <= wanted:
            return False
        left = [other for other in holders if other != worker]
        return self.spread(left if but is None else [*left, but]) >= wanted

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

    def _limits(self) -> list[int]:
        """Computes the limits: even parts by speed of what smaller workers cannot hold, plus the spare."""
        problem = self.problem
        parts = [0.0] * len(self.names)
        open_, left = set(range(len(self.names))), float(problem.layers * problem.experts * problem.replicas)
        while open_:
            each = left / sum(self.speeds[worker] for worker in open_)
            full = {worker for worker in open_ if self.rooms[worker] <= each * self.speeds[worker]}
            for worker in full or open_:
                parts[worker] = min(float(self.rooms[worker]), each * self.speeds[worker])
            left -= sum(parts[worker] for worker in full)
            open_ = open_ - full if full else set()
        least = 2 * problem.layers * (len(parts) - 1) / sum(self.speeds) if problem.spare else 0.0
        return [
            min(room, ceil(part + max(problem.spare * part, least * speed)))
            for room, part, speed in zip(self.rooms, parts, self.speeds, strict=True)
        ]
