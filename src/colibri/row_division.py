"""Divide experts among their holders so that a layer's load is level. Pure.

One holder answers for an expert if possible. Its rows are divided only where a worker would otherwise have more
than its part of the layer's load, since every divider reads the weights. Which rows, or which small batches, go
where depends on their number alone (colibri.router_service.plan), and no row's result depends on who computes it
(docs/numerics.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

#: An expert's rows are divided in so many parts.
PARTS = 1024
#: A worker may have so much more than its even part before an expert's rows are divided for it.
SLACK = 0.01
#: Levels that are tried, where the holders do not allow the even one.
_ROUNDS = 12

#: By expert: (worker, parts) of those that answer, most parts first; they sum to PARTS.
Division = tuple[tuple[tuple[int, int], ...], ...]


def divide(
    holders: Sequence[Sequence[int]], loads: Sequence[float] | None, speeds: Sequence[float] | None
) -> Division:
    """Returns who answers for which part of each expert.

    holders: by expert, the workers that may answer, at least one each.
    loads: of each expert, in any one unit; None: unknown, all alike, and no expert is divided.
    speeds: of each worker, in any one unit; None: all alike.

    The largest load / speed of a worker is the least that the holders allow, up to SLACK.
    """
    workers = sorted({worker for names in holders for worker in names})
    known = loads is not None
    level = Levelling(
        holders,
        [1.0] * len(holders) if loads is None else loads,
        [1.0] * (1 + workers[-1] if workers else 0) if speeds is None else speeds,
        workers,
    )
    level.assign(divided=known)
    if known:
        level.settle()
    return level.division()


class _Before(NamedTuple):
    """Undo record: both workers before the shift, each (worker, its piece of the expert or None, its load)."""

    expert: int
    source: tuple[int, float | None, float]
    target: tuple[int, float | None, float]


class Levelling:
    """Levels one layer's loads.

    pieces: by expert: worker -> load that it takes; above 0, except for an expert without load.
    load: by worker, the sum of its pieces.
    workers: those that share the layer's load.
    even: by worker, its part by speed.
    """

    def __init__(
        self,
        holders: Sequence[Sequence[int]],
        loads: Sequence[float],
        speeds: Sequence[float],
        workers: Sequence[int],
    ) -> None:
        self.holders = [list(names) for names in holders]
        self.loads = loads
        self.speeds = speeds
        self.workers = workers
        total, speed = sum(loads), sum(speeds[worker] for worker in workers)
        self.even = [total * own / speed if speed else 0.0 for own in speeds]
        self.load = [0.0] * len(speeds)
        self.pieces: list[dict[int, float]] = [{} for _ in holders]
        #: By worker: experts that it answers for.
        self.on: list[dict[int, None]] = [{} for _ in speeds]
        #: What was before each shift, where somebody wants to `undo` some.
        self.journal: list[_Before] | None = None
        self._dust = 1e-9 * total

    def assign(self, divided: bool) -> None:
        """Gives each expert to its least loaded holder: first experts with one holder, then the heaviest.

        divided: divide at once an expert that is more than any holder has room for.
        """
        cap = [(1 + SLACK) * even for even in self.even]
        order = sorted(range(len(self.holders)), key=lambda e: (len(self.holders[e]) > 1, -self.loads[e]))
        for expert in order:
            names, weight = self.holders[expert], self.loads[expert]
            if divided and len(names) > 1:
                for worker in sorted(names, key=lambda w: self.load[w] - cap[w]):
                    room = cap[worker] - self.load[worker]
                    if room >= weight or room <= self._dust:
                        break
                    if len(self.pieces[expert]) + 1 < len(names):
                        self._put(expert, worker, room)
                        weight -= room
            rest = min(names, key=lambda w: (self.load[w] + weight) / self.speeds[w])
            self._put(expert, rest, weight)
        if not divided:
            self._exchange()

    def settle(self) -> None:
        """Moves load along chains of holders until no worker exceeds its part and the slack, or the least that the
        holders allow.
        """
        least = 1.0
        for _ in range(_ROUNDS):
            stuck = self.push(least)
            if stuck <= least * (1 + SLACK / 4):
                return
            least = stuck

    def push(self, least: float) -> float:
        """Moves load from workers above `least` times their even part (plus the slack) to workers below it.

        Returns 0 when level, else the lower bound where it stuck: the mean, in even parts, of workers that can move
        nothing to others.
        """
        level = [(1 + SLACK) * least * even for even in self.even]
        closed: set[int] = set()
        stuck = 0.0
        for worker in sorted(self.workers, key=lambda w: level[w] - self.load[w]):
            while worker not in closed and self.load[worker] > level[worker] + self._dust:
                reached = self._push_from(worker, level, closed)
                if reached is not None:
                    closed |= reached
                    stuck = max(stuck, sum(self.load[w] for w in closed) / sum(self.even[w] for w in closed))
        return stuck

    def ratio(self) -> float:
        """Returns the largest load over even part of any worker; 1 without load."""
        return max((self.load[w] / self.even[w] for w in self.workers if self.even[w]), default=1.0)

    def add_holder(self, expert: int, worker: int) -> None:
        self.holders[expert].append(worker)

    def reach(self, start: int) -> dict[int, tuple[int, int]]:
        """Returns the workers that load of `start` can reach along chains of holders, nearest first.

        Each maps to (the worker before it, the expert that they share).
        """
        return self._search(start, lambda worker: False, frozenset())[0]

    @property
    def shifts(self) -> int:
        """Number of shifts in the journal."""
        return len(self.journal or ())

    def undo(self, length: int) -> None:
        """Undoes all shifts but the first `length`."""
        journal = self.journal or []
        while len(journal) > length:
            before = journal.pop()
            for worker, piece, load in (before.source, before.target):
                self.load[worker] = load
                if piece is None:
                    del self.pieces[before.expert][worker], self.on[worker][before.expert]
                else:
                    self.pieces[before.expert][worker] = piece
                    self.on[worker][before.expert] = None

    def pull(self, start: int, end: int, came: Mapping[int, tuple[int, int]], most: float) -> None:
        """Moves up to `most` of the load of `start` to `end`, along the chain that `reach` found."""
        amount, worker = most, end
        while worker != start:
            source, expert = came[worker]
            amount = min(amount, self.pieces[expert][source])
            worker = source
        if amount <= self._dust:
            return
        worker = end
        while worker != start:
            source, expert = came[worker]
            self.shift(expert, source, worker, amount)
            worker = source

    def shift(self, expert: int, source: int, target: int, amount: float) -> None:
        """Moves some of an expert's load from `source` to another of its holders."""
        pieces = self.pieces[expert]
        if self.journal is not None:
            ends = [(worker, pieces.get(worker), self.load[worker]) for worker in (source, target)]
            self.journal.append(_Before(expert, *ends))
        left = pieces[source] - amount
        self.load[source] -= amount
        if left <= self._dust:
            self.load[source] -= left
            amount += left
            del pieces[source], self.on[source][expert]
        else:
            pieces[source] = left
        self._put(expert, target, amount)

    def division(self) -> Division:
        return tuple(_parts(pieces) for pieces in self.pieces)

    def _put(self, expert: int, worker: int, amount: float) -> None:
        self.pieces[expert][worker] = self.pieces[expert].get(worker, 0.0) + amount
        self.on[worker][expert] = None
        self.load[worker] += amount

    def _exchange(self) -> None:
        """Moves whole experts to less loaded holders until that evens out nothing more."""
        moved = True
        while moved:  # ends: each move makes two loads more alike
            moved = False
            for expert, names in enumerate(self.holders):
                (worker,), weight = self.pieces[expert], self.loads[expert]
                now = self.load[worker] / self.speeds[worker]
                best = min(
                    names, key=lambda w: now if w == worker else (self.load[w] + weight) / self.speeds[w]
                )
                if (self.load[best] + weight) / self.speeds[best] < now - self._dust and best != worker:
                    self.shift(expert, worker, best, weight)
                    moved = True

    def _push_from(self, start: int, level: Sequence[float], closed: set[int]) -> set[int] | None:
        """Moves load along the shortest chain to a worker below its level. Returns None if it did, else all workers
        reached.
        """
        came, end = self._search(start, lambda w: self.load[w] < level[w] - self._dust, closed)
        if end is None:
            return set(came)
        self.pull(start, end, came, min(self.load[start] - level[start], level[end] - self.load[end]))
        return None

    def _search(
        self, start: int, found: Callable[[int], bool], closed: Set[int]
    ) -> tuple[dict[int, tuple[int, int]], int | None]:
        """Searches breadth first, not into `closed`, for the first worker that `found` accepts."""
        came = {start: (start, -1)}
        seen: set[int] = set()
        queue = deque([start])
        while queue:
            source = queue.popleft()
            for expert in self.on[source]:
                if expert in seen or self.pieces[expert][source] <= self._dust:
                    continue
                seen.add(expert)
                for target in self.holders[expert]:
                    if target in came or target in closed:
                        continue
                    came[target] = source, expert
                    if found(target):
                        return came, target
                    queue.append(target)
        return came, None


def _parts(pieces: dict[int, float]) -> tuple[tuple[int, int], ...]:
    """Turns loads into parts of PARTS by largest remainder; leaves out workers without a part."""
    total = sum(pieces.values())
    if len(pieces) == 1 or not total:
        return ((min(pieces), PARTS),)
    exact = {worker: PARTS * amount / total for worker, amount in pieces.items()}
    parts = {worker: int(value) for worker, value in exact.items()}
    left = PARTS - sum(parts.values())
    for worker in sorted(exact, key=lambda w: (parts[w] - exact[w], w))[:left]:
        parts[worker] += 1
    return tuple(sorted(((w, n) for w, n in parts.items() if n), key=lambda item: (-item[1], item[0])))


def worker_loads(division: Division, loads: Iterable[float], workers: int) -> list[float]:
    """Returns what each worker takes of a layer's loads by a division."""
    sums = [0.0] * workers
    for expert, load in zip(division, loads, strict=True):
        for worker, parts in expert:
            sums[worker] += load * parts / PARTS
    return sums
