"""Holders for another set of workers, with as few moves as evenness allows. Pure.

In each layer the workers' numbers of experts differ by at most one, because a layer's workers are waited for
together; then the sums over layers are evened out, too, since they are memory. The same is done for first holders,
as far as exchanges between two workers go. Pinned experts may stand in the way of both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import pairwise

from colibri.cluster.holders import ExpertId, Holders
from colibri.errors import InvalidInput

_Plan = list[list[list[str]]]


def rebalance(
    holders: Holders,
    workers: Sequence[str],
    replicas: int,
    pinned: Set[ExpertId] = frozenset(),
    *,
    even: bool = True,
) -> Holders:
    """Each expert on `replicas` of `workers`, or on all of them where they are fewer.

    An expert leaves a worker only if that is not among `workers`, holds one copy too many, or to even out
    (`even`: otherwise nothing moves for that). `pinned` experts keep their holders and as many as they had.
    Raises InvalidInput without workers or replicas.
    """
    if not workers:
        raise InvalidInput("workers", "at least one", "none")
    if replicas < 1:
        raise InvalidInput("replicas", "at least 1", replicas)
    known = set(workers)
    plan: _Plan = [[[name for name in names if name in known] for names in experts] for experts in holders]
    ledger = _Copies(plan, workers, pinned, holders)
    for layer, experts in enumerate(plan):
        for expert, names in enumerate(experts):
            had = len(holders[layer][expert])
            wanted = min(had if (layer, expert) in pinned else replicas, len(workers))
            while len(names) > wanted:
                ledger.drop(layer, expert)
            while len(names) < wanted:
                ledger.fill(layer, expert)
    if even:
        _even_out(ledger)
    _even_out(_Firsts(plan, workers, pinned, holders))
    return tuple(tuple(tuple(names) for names in experts) for experts in plan)


class _Ledger(ABC):
    """Counts of something that lies on workers, by layer and in all, and how one of it goes from one worker to
    another. `fixed`: experts that stay."""

    def __init__(self, plan: _Plan, workers: Sequence[str], fixed: Set[ExpertId], before: Holders) -> None:
        self.plan = plan
        self.workers = tuple(workers)
        self.before = before
        self.counts: list[dict[str, int]] = [dict.fromkeys(workers, 0) for _ in plan]
        self.totals: dict[str, int] = dict.fromkeys(workers, 0)
        self._fixed = fixed
        self._on: list[dict[str, set[int]]] = [{name: set() for name in workers} for _ in plan]
        for layer, experts in enumerate(plan):
            for expert, names in enumerate(experts):
                for name in self.counted(names):
                    self.put(layer, expert, name)

    @abstractmethod
    def counted(self, names: Sequence[str]) -> Sequence[str]: ...

    @abstractmethod
    def goes(self, names: Sequence[str], target: str) -> bool:
        """Whether `target` can take it over from one of `names`."""

    @abstractmethod
    def shift(self, names: list[str], source: str, target: str) -> None: ...

    def put(self, layer: int, expert: int, name: str, by: int = 1) -> None:
        self.counts[layer][name] += by
        self.totals[name] += by
        (self._on[layer][name].add if by > 0 else self._on[layer][name].discard)(expert)

    def rank(self, layer: int, name: str) -> tuple[int, int, int]:
        """The least goes to the least loaded."""
        return self.counts[layer][name], self.totals[name], self.workers.index(name)

    def movable(self, layer: int, source: str, target: str) -> int | None:
        """An expert that can go, best one that costs nothing: it has only just come, or is going home."""
        free = other = None
        for expert in sorted(self._on[layer][source]):
            if (layer, expert) in self._fixed or not self.goes(self.plan[layer][expert], target):
                continue
            before = self.before[layer][expert]
            if source not in before or target in before:
                free = expert if free is None else free
            elif other is None:
                other = expert
        return other if free is None else free

    def move(self, layer: int, source: str, target: str) -> None:
        expert = self.movable(layer, source, target)
        if expert is None:
            raise RuntimeError("nothing can move")
        self.shift(self.plan[layer][expert], source, target)
        self.put(layer, expert, source, -1)
        self.put(layer, expert, target)


class _Copies(_Ledger):
    """Every copy of an expert."""

    def counted(self, names: Sequence[str]) -> Sequence[str]:
        return names

    def goes(self, names: Sequence[str], target: str) -> bool:
        return target not in names

    def shift(self, names: list[str], source: str, target: str) -> None:
        names[names.index(source)] = target

    def fill(self, layer: int, expert: int) -> None:
        names = self.plan[layer][expert]
        target = min((w for w in self.workers if w not in names), key=lambda w: self.rank(layer, w))
        names.append(target)
        self.put(layer, expert, target)

    def drop(self, layer: int, expert: int) -> None:
        names = self.plan[layer][expert]
        source = max(names, key=lambda w: self.rank(layer, w))
        names.remove(source)
        self.put(layer, expert, source, -1)


class _Firsts(_Ledger):
    """The first place among an expert's holders: changing it loads nothing."""

    def counted(self, names: Sequence[str]) -> Sequence[str]:
        return names[:1]

    def goes(self, names: Sequence[str], target: str) -> bool:
        return target in names

    def shift(self, names: list[str], source: str, target: str) -> None:
        other = names.index(target)
        names[0], names[other] = target, source


def _even_out(ledger: _Ledger) -> None:
    for layer in range(len(ledger.plan)):
        while path := _layer_path(ledger, layer):
            # From its end: so each hop finds its expert where the search saw it.
            for source, target in reversed(list(pairwise(path))):
                ledger.move(layer, source, target)
    while path := _totals_path(ledger):
        for source, target in reversed(list(pairwise(path))):
            exchange = _exchange_layer(ledger, source, target)
            if exchange is None:
                return  # an earlier hop used it; what was done has made nothing worse
            ledger.move(exchange, source, target)


def _layer_path(ledger: _Ledger, layer: int) -> list[str]:
    """The shortest way by which a fullest worker of a layer gets rid of one."""
    order = sorted(ledger.workers, key=lambda name: ledger.rank(layer, name))
    return _path(
        order,
        ledger.counts[layer],
        lambda source, target: ledger.movable(layer, source, target) is not None,
    )


def _totals_path(ledger: _Ledger) -> list[str]:
    """The same for the sums over layers, by moves that leave each layer as even as it is."""
    order = sorted(ledger.workers, key=lambda name: (ledger.totals[name], ledger.workers.index(name)))
    return _path(
        order,
        ledger.totals,
        lambda source, target: _exchange_layer(ledger, source, target) is not None,
    )


def _exchange_layer(ledger: _Ledger, source: str, target: str) -> int | None:
    """A layer where `source` has more than `target`, and one that can go there."""
    for layer, counts in enumerate(ledger.counts):
        if counts[source] > counts[target] and ledger.movable(layer, source, target) is not None:
            return layer
    return None


def _path(
    emptiest_first: Sequence[str], counts: Mapping[str, int], edge: Callable[[str, str], bool]
) -> list[str]:
    """From a worker with the most to one with at least two fewer, over as few `edge`s as there are; empty where
    there is no way."""
    most = counts[emptiest_first[-1]]
    if counts[emptiest_first[0]] > most - 2:
        return []
    fullest = [name for name in reversed(emptiest_first) if counts[name] == most]
    came: dict[str, str | None] = dict.fromkeys(fullest)
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


def _way_to(target: str, came: Mapping[str, str | None]) -> list[str]:
    path = [target]
    while (before := came[path[-1]]) is not None:
        path.append(before)
    return path[::-1]
