"""Even out by number of experts while loads are unknown, with as few moves as possible.

In each layer the workers' numbers differ by at most one, since a layer's workers are waited for together. Then the
sums over layers are evened out, since they are memory. First holders, who answer while loads are unknown, are
evened out the same way, as far as exchanges between two workers allow. Pinned experts, hosts and memory may stand
in the way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from colibri.cluster.placing.planner.layout import Layout


def even_out(layout: Layout, *, copies: bool) -> None:
    """Evens out numbers. copies: also of all copies, not only of first holders."""
    if copies:
        _level(_Copies(layout))
    _level(_Firsts(layout))


class _Ledger(ABC):
    """Counts something that lies on workers, by layer and in all, and moves one of it from one worker to another."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.plan = layout.holders
        self.workers = range(len(layout.names))
        index = {name: position for position, name in enumerate(layout.names)}
        self._before = [
            [frozenset(index[name] for name in names if name in index) for names in experts]
            for experts in layout.problem.holders
        ]
        self.counts = [[0] * len(layout.names) for _ in self.plan]
        self.totals = [0] * len(layout.names)
        self._on: list[list[set[int]]] = [[set() for _ in self.workers] for _ in self.plan]
        for layer, experts in enumerate(self.plan):
            for expert, holders in enumerate(experts):
                for worker in self.counted(holders):
                    self.put(layer, expert, worker)

    @abstractmethod
    def counted(self, holders: Sequence[int]) -> Sequence[int]: ...

    @abstractmethod
    def goes(self, holders: Sequence[int], source: int, target: int) -> bool:
        """Whether `target` can take it over from `source`, one of `holders`."""

    @abstractmethod
    def shift(self, layer: int, expert: int, source: int, target: int) -> None: ...

    def put(self, layer: int, expert: int, worker: int, by: int = 1) -> None:
        self.counts[layer][worker] += by
        self.totals[worker] += by
        (self._on[layer][worker].add if by > 0 else self._on[layer][worker].discard)(expert)

    def rank(self, layer: int, worker: int) -> tuple[int, int, int]:
        """Orders workers: the least loaded comes first."""
        return self.counts[layer][worker], self.totals[worker], worker

    def movable(self, layer: int, source: int, target: int) -> int | None:
        """Returns an expert that can move, preferably for nothing: one that has only just come, or is going home."""
        other = None
        for expert in sorted(self._on[layer][source]):
            if (layer, expert) in self.layout.problem.pinned:
                continue
            if not self.goes(self.plan[layer][expert], source, target):
                continue
            before = self._before[layer][expert]
            if source not in before or target in before:
                return expert
            if other is None:
                other = expert
        return other

    def move(self, layer: int, source: int, target: int) -> bool:
        expert = self.movable(layer, source, target)
        if expert is None:
            return False
        self.shift(layer, expert, source, target)
        self.put(layer, expert, source, -1)
        self.put(layer, expert, target)
        return True


class _Copies(_Ledger):
    """Counts every copy of an expert."""

    def counted(self, holders: Sequence[int]) -> Sequence[int]:
        return holders

    def goes(self, holders: Sequence[int], source: int, target: int) -> bool:
        layout = self.layout
        if target in holders or layout.counts[target] >= layout.rooms[target]:
            return False
        return layout.apart([worker for worker in holders if worker != source], target)

    def shift(self, layer: int, expert: int, source: int, target: int) -> None:
        holders = self.plan[layer][expert]
        holders[holders.index(source)] = target
        self.layout.counts[source] -= 1
        self.layout.counts[target] += 1


class _Firsts(_Ledger):
    """Counts first holders. Changing an expert's first holder loads nothing."""

    def counted(self, holders: Sequence[int]) -> Sequence[int]:
        return holders[:1]

    def goes(self, holders: Sequence[int], source: int, target: int) -> bool:
        return target in holders

    def shift(self, layer: int, expert: int, source: int, target: int) -> None:
        holders = self.plan[layer][expert]
        other = holders.index(target)
        holders[0], holders[other] = target, source


def _level(ledger: _Ledger) -> None:
    for layer in range(len(ledger.plan)):
        # From a path's end: so each hop finds its expert where the search saw it, but for what memory forbids.
        while (path := _layer_path(ledger, layer)) and _walk(ledger, path, layer):
            pass
    while (path := _totals_path(ledger)) and _walk(ledger, path, None):
        pass


def _walk(ledger: _Ledger, path: Sequence[int], layer: int | None) -> bool:
    """Moves along a path. Returns False if an earlier hop used what a later one needs; what was done has made nothing
    worse.

    layer: None: any layer that stays as even as it is.
    """
    for source, target in reversed(list(pairwise(path))):
        place = _exchange_layer(ledger, source, target) if layer is None else layer
        if place is None or not ledger.move(place, source, target):
            return False
    return True


def _layer_path(ledger: _Ledger, layer: int) -> list[int]:
    """Returns the shortest path by which a fullest worker of a layer gives one away."""
    order = sorted(ledger.workers, key=lambda worker: ledger.rank(layer, worker))
    return _path(
        order,
        dict(enumerate(ledger.counts[layer])),
        lambda source, target: ledger.movable(layer, source, target) is not None,
    )


def _totals_path(ledger: _Ledger) -> list[int]:
    """Returns the same for the sums over layers, by moves that leave each layer as even as it is."""
    order = sorted(ledger.workers, key=lambda worker: (ledger.totals[worker], worker))
    return _path(
        order,
        dict(enumerate(ledger.totals)),
        lambda source, target: _exchange_layer(ledger, source, target) is not None,
    )


def _exchange_layer(ledger: _Ledger, source: int, target: int) -> int | None:
    """Returns a layer in which `source` has more than `target`, and an expert that can move there."""
    for layer, counts in enumerate(ledger.counts):
        if counts[source] > counts[target] and ledger.movable(layer, source, target) is not None:
            return layer
    return None


def _path(
    emptiest_first: Sequence[int], counts: Mapping[int, int], edge: Callable[[int, int], bool]
) -> list[int]:
    """Returns the shortest path from a worker with the most to one with at least two fewer; empty if there is none."""
    most = counts[emptiest_first[-1]]
    if counts[emptiest_first[0]] > most - 2:
        return []
    fullest = [worker for worker in reversed(emptiest_first) if counts[worker] == most]
    came: dict[int, int | None] = dict.fromkeys(fullest)
    queue = deque(fullest)
    while queue:
        source = queue.popleft()
        for target in emptiest_first:
            if target in came or not edge(source, target):
                continue
            came[target] = source
            if counts[target] <= most - 2:
                return _way_to(target, came)
            queue.append(target)
    return []


def _way_to(target: int, came: Mapping[int, int | None]) -> list[int]:
    path = [target]
    while (before := came[path[-1]]) is not None:
        path.append(before)
    return path[::-1]
