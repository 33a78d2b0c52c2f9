"""Put copies of every expert on as many hosts as wanted, within each worker's memory, with as few moves as possible."""

from __future__ import annotations

from heapq import nlargest

from colibri.cluster.placing.planner.layout import Layout
from colibri.errors import OverBudget


def cover(layout: Layout) -> None:
    """Adds the wanted copies. Drops surplus copies if loads are unknown; if they are known, only to make room.

    Raises OverBudget if pinned experts stand in the way.
    """
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
    """Drops a copy that replaced another of its host and has been made anew elsewhere."""
    holders = layout.holders[layer][expert]
    for worker in list(reversed(holders)) if (layer, expert) not in layout.problem.pinned else ():
        beside = [other for other in holders if layout.hosts[other] == layout.hosts[worker]]
        if len(beside) > 1 and len(holders) > layout.wanted(layer, expert):
            measure.drop(layer, expert, worker)


class _Measure:
    """What each worker has already, in a layer and in all: by load and speed if loads are known, else by number."""

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
    """Takes copies from workers with more than fits: surplus ones first, the lightest first."""
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
    """Makes room for an expert on a full worker that could hold it: drops a surplus copy, or moves one to a worker
    with room.

    Returns False if neither is possible.
    """
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
    """Places all experts anew, each on the hosts with the most room left, present holders first among equals.

    That finds a way if there is one (Havel, Hakimi), but costs moves; only very full clusters need it. Raises
    OverBudget if pinned experts leave no way.
    """
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
