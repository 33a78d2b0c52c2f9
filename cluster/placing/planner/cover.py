"""Copies of every expert on as many hosts as are wanted, within each worker's memory, with as few moves as that
allows."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest

from colibri.cluster.placing.planner.layout import Layout
from colibri.errors import OverBudget

#: A worker's place in the queue for a copy: the least gets it.
Rank = Callable[[int, int], tuple[float, float, int]]


def cover(layout: Layout) -> None:
    """Copies beyond what is wanted go where loads are not known; where they are, only to make room. Raises OverBudget
    where pinned experts stand in the way of the rest."""
    problem = layout.problem
    measure = _Measure(layout)
    pinned = problem.pinned
    surplus: list[tuple[int, int]] = []
    for layer, experts in enumerate(layout.holders):
        for expert, holders in enumerate(experts):
            wanted = layout.wanted(layer, expert)
            if (layer, expert) in pinned:
                continue
            if len(holders) > wanted and problem.loads is not None:
                surplus.append((layer, expert))
                continue
            while len(holders) > wanted:
                measure.drop(layer, expert, max(holders, key=lambda w: measure.rank(layer, w)))
    _shed(layout, measure, surplus)
    missing = [
        (layer, expert)
        for layer, experts in enumerate(layout.holders)
        for expert, holders in enumerate(experts)
        if layout.spread(holders) < layout.wanted(layer, expert)
    ]
    for layer, expert in missing:
        while layout.spread(layout.holders[layer][expert]) < layout.wanted(layer, expert):
            worker = measure.taker(layer, expert)
            if worker is None:
                if not _free_one(layout, measure, layer, expert):
                    _pack(layout)
                    return
            else:
                measure.add(layer, expert, worker)
        _part(layout, measure, layer, expert)


def _part(layout: Layout, measure: _Measure, layer: int, expert: int) -> None:
    """A copy that was to stand in for another of its host has been made anew elsewhere, and goes."""
    holders = layout.holders[layer][expert]
    for worker in list(reversed(holders)) if (layer, expert) not in layout.problem.pinned else ():
        beside = [other for other in holders if layout.hosts[other] == layout.hosts[worker]]
        if len(beside) > 1 and len(holders) > layout.wanted(layer, expert):
            measure.drop(layer, expert, worker)


class _Measure:
    """What a worker has already, of a layer and in all: by load and speed where loads are known, else by number."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        loads = layout.problem.loads
        self._weights = loads or tuple((1.0,) * len(experts) for experts in layout.holders)
        self._layers = [[0.0] * len(layout.names) for _ in layout.holders]
        for layer, experts in enumerate(layout.holders):
            for expert, holders in enumerate(experts):
                for worker in holders:
                    self._layers[layer][worker] += self._weight(layer, expert)

    def rank(self, layer: int, worker: int) -> tuple[float, float, int]:
        return self._layers[layer][worker] / self.layout.speeds[worker], self.layout.counts[worker], worker

    def taker(self, layer: int, expert: int) -> int | None:
        layout = self.layout
        holders = layout.holders[layer][expert]
        able = [
            worker
            for worker, room in enumerate(layout.rooms)
            if layout.counts[worker] < room and layout.apart(holders, worker)
        ]
        return min(able, key=lambda w: self.rank(layer, w), default=None)

    def add(self, layer: int, expert: int, worker: int) -> None:
        self.layout.add(layer, expert, worker)
        self._layers[layer][worker] += self._weight(layer, expert)

    def drop(self, layer: int, expert: int, worker: int) -> None:
        self.layout.drop(layer, expert, worker)
        self._layers[layer][worker] -= self._weight(layer, expert)

    def _weight(self, layer: int, expert: int) -> float:
        return self._weights[layer][expert]


def _shed(layout: Layout, measure: _Measure, surplus: list[tuple[int, int]]) -> None:
    """Workers with more than fits give up copies: such as are not wanted first, the lightest of them."""
    for worker, room in enumerate(layout.rooms):
        if layout.counts[worker] <= room:
            continue
        mine = [
            (layer, expert)
            for layer, experts in enumerate(layout.holders)
            for expert, holders in enumerate(experts)
            if worker in holders
        ]
        extra = set(surplus)
        mine.sort(
            key=lambda key: (
                key in layout.problem.pinned,
                not (key in extra and layout.may_go(key[0], key[1], worker)),
                key,
            )
        )
        for layer, expert in mine[: layout.counts[worker] - room]:
            measure.drop(layer, expert, worker)


def _free_one(layout: Layout, measure: _Measure, layer: int, expert: int) -> bool:
    """Room for an expert on some worker that could have it but is full: a copy that is not wanted goes, or one that
    can goes to a worker with room. False: there is none such."""
    holders = layout.holders[layer][expert]
    hosts = [
        worker
        for worker in range(len(layout.names))
        if layout.rooms[worker] and layout.apart(holders, worker)
    ]
    hosts.sort(key=lambda w: measure.rank(layer, w))
    for worker in hosts:
        for other_layer, experts in enumerate(layout.holders):
            for other, names in enumerate(experts):
                if worker not in names or (other_layer, other) in layout.problem.pinned:
                    continue
                if layout.may_go(other_layer, other, worker):
                    measure.drop(other_layer, other, worker)
                    return True
                rest = [name for name in names if name != worker]
                for target, room in enumerate(layout.rooms):
                    if layout.counts[target] < room and layout.apart(rest, target) and target != worker:
                        measure.drop(other_layer, other, worker)
                        measure.add(other_layer, other, target)
                        return True
    return False


def _pack(layout: Layout) -> None:
    """All experts anew, each to the hosts with the most room left, those that hold it first among equals. That finds a
    way wherever there is one (Havel, Hakimi), at the price of moves; only the fullest of clusters come to it. Raises
    OverBudget where pinned experts leave none."""
    problem = layout.problem
    keys = [(layer, expert) for layer in range(problem.layers) for expert in range(problem.experts)]
    before = {key: list(layout.holders[key[0]][key[1]]) for key in keys}
    for layer, expert in keys:
        if (layer, expert) not in problem.pinned:
            for worker in before[layer, expert]:
                layout.drop(layer, expert, worker)
    on_host: dict[int, list[int]] = {}
    for worker, host in enumerate(layout.hosts):
        on_host.setdefault(host, []).append(worker)
    left = len(keys)
    for layer, expert in keys:
        had, holders = before[layer, expert], layout.holders[layer][expert]
        room = {
            host: min(left, sum(layout.rooms[w] - layout.counts[w] for w in workers))
            for host, workers in on_host.items()
            if layout.apart(holders, workers[0])
        }
        mine = {layout.hosts[worker] for worker in had}
        missing = layout.wanted(layer, expert) - layout.spread(holders)
        for host in nlargest(missing, room, key=lambda h: (room[h], h in mine, -h)):
            if room[host] <= 0:
                raise OverBudget(
                    f"memory: the workers have no room for {layout.wanted(layer, expert)} copies of expert "
                    f"{layer}:{expert} on different hosts beside the {len(problem.pinned)} that stay where they are"
                )
            free = [w for w in on_host[host] if layout.counts[w] < layout.rooms[w]]
            layout.add(
                layer, expert, min(free, key=lambda w: (w not in had, layout.counts[w] - layout.rooms[w], w))
            )
        left -= 1
