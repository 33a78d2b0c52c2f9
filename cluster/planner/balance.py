"""Evened out by load, layer by layer, since a layer's workers are waited for together.

First for nothing: among the holders that there are. Where that leaves a worker with too much, copies: of an expert that
a most loaded worker answers for, on a least loaded one, so large a part of it as levels one of the two. Each copy so
settles a worker, and W workers need at most W - 1. Where no worker has room for a copy, two workers exchange experts. A
layer's copies are kept as far as they are worth their bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from colibri.cluster.planner.layout import Layout
from colibri.cluster.planner.problem import Loads
from colibri.sharing import SLACK, Levelling

#: Hosts of least loaded workers that are looked at for a copy, and for an exchange.
_TAKERS, _PARTNERS = 512, 8
#: Copies and exchanges of a layer, at most, for each worker and each expert.
_STEPS = 4
#: A layer whose slowest worker would be quicker by less, of the mean, is left as it is: divisions differ by SLACK.
_LEAST_GAIN = 0.015
#: What is aimed at is raised so much, where it cannot be had.
_RAISE = 1.05
#: A whole expert is moved rather than divided, if it is at least so much of what is to be settled.
_WHOLE = 0.85


@dataclass(slots=True)
class _Step:
    """What one copy or exchange did, to be undone: (expert, worker) and (layer, expert, worker) of holders; shifts: of
    load that had been made before it; elsewhere: the same of other layers. ratio: the layer's, after it."""

    shifts: int
    added: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[tuple[int, int, int]] = field(default_factory=list)
    elsewhere: list[tuple[Levelling, int]] = field(default_factory=list)
    ratio: float = 0.0


def balance(layout: Layout, loads: Loads) -> list[Levelling]:
    """Adds, moves and drops copies. Returns each layer's division as reckoned with."""
    workers = list(range(len(layout.names)))
    levels = []
    for holders, layer_loads in zip(layout.holders, loads, strict=True):
        level = Levelling(holders, layer_loads, layout.speeds, workers)
        level.assign(divided=True)
        level.settle()
        level.journal = []
        levels.append(level)
    spares = _Spares(layout, levels)
    order = sorted(range(len(levels)), key=lambda layer: -_excess(levels[layer]))
    for layer in order:
        if levels[layer].ratio() > layout.problem.trigger:
            _Settling(layout, levels, spares, layer).run()
    return levels


def _excess(level: Levelling) -> float:
    return max((level.load[w] - level.even[w] for w in level.workers), default=0.0)


class _Spares:
    """Copies that nobody needs: beyond the wanted ones, and their worker answers for nothing of them."""

    def __init__(self, layout: Layout, levels: list[Levelling]) -> None:
        self._layout = layout
        self._levels = levels
        self._of: list[list[tuple[int, int]]] = [[] for _ in layout.names]
        for layer, experts in enumerate(layout.holders):
            for expert, holders in enumerate(experts):
                if len(holders) > layout.wanted(layer, expert):
                    for worker in holders:
                        if worker not in levels[layer].pieces[expert]:
                            self._of[worker].append((layer, expert))

    def offer(self, layer: int, expert: int, worker: int) -> None:
        """It answers for it no longer."""
        self._of[worker].append((layer, expert))

    def take(self, worker: int) -> tuple[int, int] | None:
        """One that can go, the latest offered."""
        layout, found = self._layout, self._of[worker]
        while found:
            layer, expert = found.pop()
            if (
                worker in layout.holders[layer][expert]
                and worker not in self._levels[layer].pieces[expert]
                and len(layout.holders[layer][expert]) > layout.wanted(layer, expert)
                and (layer, expert) not in layout.problem.pinned
            ):
                return layer, expert
        return None


class _Settling:
    """One layer's copies."""

    def __init__(self, layout: Layout, levels: list[Levelling], spares: _Spares, layer: int) -> None:
        self._layout = layout
        self._levels = levels
        self._level = level = levels[layer]
        self._spares = spares
        self._layer = layer
        self._steps: list[_Step] = []
        # An expert is on a host once: what all hosts together can take of the hottest may be less than an even part.
        widest: dict[int, float] = {}
        for host, speed in zip(layout.hosts, layout.speeds, strict=True):
            widest[host] = max(speed, widest.get(host, 0.0))
        least = max(level.loads) / sum(widest.values()) * sum(layout.speeds) / sum(level.loads)
        self._least = max(1.0, least)
        #: -load / even part, and load - even part: some out of date.
        self._over: list[tuple[float, int]] = []
        self._under: list[list[tuple[float, int, int]]] = []
        self._hosts: list[tuple[float, int, int]] = []
        #: Workers that lack some, but have no room.
        self._full: set[int] = set()
        #: Workers that no other layer's copy can leave.
        self._rooted: set[int] = set()
        self._aim(self._least)
        #: By expert: the host of each of its copies.
        self._on_hosts = [{layout.hosts[w]: w for w in holders} for holders in layout.holders[layer]]
        self._goal = layout.problem.goal

    def run(self) -> None:
        level, problem = self._level, self._layout.problem
        before = level.ratio()
        most = _STEPS * (len(level.workers) + len(level.loads))
        while len(self._steps) < most:
            if (worker := self._fullest()) is None:
                break
            step = self._settle_some(worker)
            if step is None:
                # Memory or hosts forbid it: the others may yet have less than now, if more than that.
                if -self._top() <= _RAISE:
                    break
                self._aim(self._least * max(_RAISE, self._open_part()))
                continue
            step.ratio = -self._top() * self._least
            self._steps.append(step)
        time = sum(level.load) / sum(self._layout.speeds)
        best, kept, loads = _LEAST_GAIN * time, 0, 0
        for number, step in enumerate(self._steps, 1):
            loads += len(step.added)
            gain = (before - step.ratio) * time - problem.cost_per_byte * problem.expert_bytes * loads
            if gain > best:
                best, kept = gain, number
        for step in reversed(self._steps[kept:]):
            self._undo(step)

    def _open_part(self) -> float:
        """Load over even part of all but those that lack some and have no room."""
        level = self._level
        able = [w for w in level.workers if w not in self._full or level.load[w] >= self._even[w]]
        return sum(level.load[w] for w in able) / (sum(self._even[w] for w in able) or 1.0)

    def _aim(self, least: float) -> None:
        """At this times the even part."""
        level, layout = self._level, self._layout
        self._least = least
        self._even = [least * even for even in level.even]
        self._full = set()
        self._over = [(-level.load[w] / self._even[w], w) for w in level.workers if self._even[w]]
        self._under = [[] for _ in range(1 + max(layout.hosts))]
        for w in level.workers:
            self._under[layout.hosts[w]].append((level.load[w] - self._even[w], layout.counts[w], w))
        for heap in self._under:
            heapq.heapify(heap)
        self._hosts = [(*heap[0][:2], host) for host, heap in enumerate(self._under) if heap]
        heapq.heapify(self._over)
        heapq.heapify(self._hosts)

    def _top(self) -> float:
        """-1 x the largest of load / even part; heap entries that are out of date go."""
        level, over = self._level, self._over
        while over and -over[0][0] != level.load[over[0][1]] / self._even[over[0][1]]:
            heapq.heappop(over)
        return over[0][0] if over else -1.0

    def _fullest(self) -> int | None:
        return self._over[0][1] if -self._top() > self._goal else None

    def _emptiest(self) -> int | None:
        """The worker that lacks most, of those the one that holds least; its host is off the heap until it is
        `_back`."""
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
        while heap and heap[0][0] != level.load[heap[0][2]] - self._even[heap[0][2]]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _back(self, workers: Iterable[int]) -> None:
        for host in {self._layout.hosts[worker] for worker in workers}:
            entry = self._best_of(host)
            if entry is not None:
                heapq.heappush(self._hosts, (*entry[:2], host))

    def _touched(self, *workers: int) -> None:
        level = self._level
        for worker in workers:
            if self._even[worker]:
                heapq.heappush(self._over, (-level.load[worker] / self._even[worker], worker))
            entry = (level.load[worker] - self._even[worker], self._layout.counts[worker], worker)
            heapq.heappush(self._under[self._layout.hosts[worker]], entry)

    def _settle_some(self, source: int) -> _Step | None:
        """Less for `source`: for nothing where earlier steps have made that possible; by a copy; or, since all that
        could take something hold it already and have enough, by one of them giving away of its other experts, and
        taking more in turn."""
        level = self._level
        for expert in level.on[source]:
            for holder in level.holders[expert]:
                if holder != source and self._lacks(holder):
                    free = _Step(level.shifts)
                    self._pull(source, holder, {holder: (source, expert)})
                    return free
        excess = level.load[source] - self._even[source]
        step = self._copy_from(source, excess)
        if step is not None:
            return step
        came = level.reach(source)
        for giver in came:
            if giver == source:
                continue
            step = _Step(level.shifts) if self._lacks(giver) else self._copy_from(giver, excess)
            if step is not None:
                if (
                    giver in level.holders[came[giver][1]]
                ):  # it may just have moved that very expert to a neighbour
                    self._pull(source, giver, came)
                return step
        step = self._swap(source, excess, excess)
        for giver in list(came)[1:_PARTNERS] if step is None else ():
            if (step := self._swap(giver, excess, 0.0)) is not None:
                if giver in level.holders[came[giver][1]]:
                    self._pull(source, giver, came)
                break
        return step

    def _lacks(self, worker: int) -> bool:
        level = self._level
        return level.load[worker] < self._even[worker] * (1 - SLACK)

    def _pull(self, source: int, target: int, came: Mapping[int, tuple[int, int]]) -> None:
        level = self._level
        chain, worker = [target], target
        while worker != source:
            worker = came[worker][0]
            chain.append(worker)
        room = self._even[target] * self._goal - level.load[target]
        level.pull(source, target, came, max(0.0, min(level.load[source] - self._even[source], room)))
        self._touched(*chain)
        self._back(chain)

    def _copy_from(self, source: int, excess: float) -> _Step | None:
        level, layout = self._level, self._layout
        pieces = sorted(((level.pieces[e][source], -e) for e in level.on[source]), reverse=True)
        seen: list[int] = []
        while len(seen) < _TAKERS and (target := self._emptiest()) is not None:
            step = _Step(level.shifts)
            if not self._has_room(target) and not self._vacate(target, source, step):
                heapq.heappop(self._under[layout.hosts[target]])  # nor will it have any for this layer
                self._full.add(target)
                self._back([target])
                continue
            seen.append(target)
            amount = min(excess, self._even[target] - level.load[target])
            expert = None if target == source else self._choose(pieces, source, target, amount)
            if expert is None:
                if step.dropped:
                    self._undo(step)
                continue
            piece = level.pieces[expert][source]
            neighbours = layout.hosts[source] == layout.hosts[target]
            whole = neighbours or piece <= amount * (1 + SLACK)
            self._make_room(target, step)
            self._add(expert, target, step)
            level.shift(expert, source, target, piece if whole else amount)
            if neighbours:
                self._drop(self._layer, expert, source, step)
            elif whole and len(layout.holders[self._layer][expert]) > layout.wanted(self._layer, expert):
                self._spares.offer(self._layer, expert, source)
            self._touched(source, target)
            self._back([source, *seen])
            return step
        self._back(seen)
        return None

    def _choose(self, pieces: list[tuple[float, int]], source: int, target: int, amount: float) -> int | None:
        """The largest piece that goes as a whole, if it settles enough; else the largest one, to be divided."""
        host, largest, load = self._layout.hosts[target], None, self._level.load
        neighbours = host == self._layout.hosts[source]
        for piece, number in pieces:
            expert = -number
            if piece <= 0 or self._on_hosts[expert].get(host, source) != source or self._is_pinned(expert):
                continue
            if piece <= amount * (1 + SLACK):
                return expert if largest is None or piece >= _WHOLE * amount else largest
            # Between neighbours nothing is divided: it is better off there as a whole, or it stays.
            if largest is None and (not neighbours or load[target] + piece < load[source] * (1 - SLACK)):
                largest = expert
        return largest

    def _is_pinned(self, expert: int) -> bool:
        return (self._layer, expert) in self._layout.problem.pinned

    def _swap(self, source: int, excess: float, beyond: float) -> _Step | None:
        """Exchanges a whole expert each with a worker that lacks some and has no room. excess: what is to go; beyond:
        by so much the other may then have more than its part."""
        level, layer = self._level, self._layer
        best: tuple[float, int, int, int] | None = None
        mine = [(level.pieces[e][source], e) for e in level.on[source]]
        lacking = sorted((level.load[w] - self._even[w], w) for w in self._full)
        for lack, target in lacking[:_PARTNERS]:
            want = min(excess, -lack)
            theirs = [(level.pieces[e][target], e) for e in level.on[target]]
            for piece, expert in mine:
                if not self._can_swap(expert, source, target):
                    continue
                for other_piece, other in theirs:
                    gain = piece - other_piece
                    if 0 < gain < beyond - lack and self._can_swap(other, target, source):
                        miss = abs(gain - want)
                        if best is None or miss < best[0]:
                            best = miss, expert, other, target
            if best is not None and best[0] < want:
                break
        if best is None:
            return None
        _, expert, other, target = best
        step = _Step(level.shifts)
        for number, giver, taker in ((expert, source, target), (other, target, source)):
            self._add(number, taker, step)
            level.shift(number, giver, taker, level.pieces[number][giver])
            self._drop(layer, number, giver, step)
        self._touched(source, target)
        self._back([source, target])
        return step

    def _can_swap(self, expert: int, giver: int, taker: int) -> bool:
        """Where the giver's copy goes."""
        host = self._layout.hosts[taker]
        return self._on_hosts[expert].get(host, giver) == giver and not self._is_pinned(expert)

    def _has_room(self, worker: int) -> bool:
        layout = self._layout
        if layout.counts[worker] < layout.limits[worker]:
            return True
        spare = self._spares.take(worker)
        if spare is None:
            return False
        self._spares.offer(*spare, worker)
        return True

    def _vacate(self, worker: int, source: int, step: _Step) -> bool:
        """Another holder takes over what this one answers for of some expert, the least first, and its copy goes; of
        this layer or another."""
        if self._vacate_in(self._layer, worker, source, self._even, step):
            return True
        if worker in self._rooted:
            return False
        for layer, level in enumerate(self._levels):
            if layer != self._layer and self._vacate_in(layer, worker, -1, level.even, step):
                return True
        self._rooted.add(worker)
        return False

    def _vacate_in(self, layer: int, worker: int, source: int, even: Sequence[float], step: _Step) -> bool:
        """source: what it holds is left alone, since something of it is to come here."""
        layout, level = self._layout, self._levels[layer]
        for piece, expert in sorted((level.pieces[e][worker], e) for e in level.on[worker]):
            holders = level.holders[expert]
            if len(holders) <= layout.wanted(layer, expert) or source in holders:
                continue
            if (layer, expert) in layout.problem.pinned:
                continue
            for other in holders:
                room = even[other] * self._goal - level.load[other]
                if other not in (worker, source) and piece <= room:
                    if layer != self._layer:
                        step.elsewhere.append((level, level.shifts))
                    level.shift(expert, worker, other, piece)
                    self._drop(layer, expert, worker, step)
                    if layer == self._layer:
                        self._touched(worker, other)
                        self._back([other])
                    return True
        return False

    def _make_room(self, worker: int, step: _Step) -> None:
        if self._layout.counts[worker] >= self._layout.limits[worker]:
            spare = self._spares.take(worker)
            if spare is not None:
                self._drop(*spare, worker, step)

    # What can be undone

    def _add(self, expert: int, worker: int, step: _Step) -> None:
        self._layout.add(self._layer, expert, worker)
        self._level.add_holder(expert, worker)
        self._on_hosts[expert][self._layout.hosts[worker]] = worker
        step.added.append((expert, worker))

    def _drop(self, layer: int, expert: int, worker: int, step: _Step) -> None:
        self._layout.drop(layer, expert, worker)
        if layer == self._layer and self._on_hosts[expert].get(self._layout.hosts[worker]) == worker:
            del self._on_hosts[expert][self._layout.hosts[worker]]
        self._levels[layer].holders[expert].remove(worker)
        step.dropped.append((layer, expert, worker))

    def _undo(self, step: _Step) -> None:
        level, hosts = self._level, self._layout.hosts
        journal = level.journal or []
        moved = {
            worker for before in journal[step.shifts :] for worker in (before.source[0], before.target[0])
        }
        level.undo(step.shifts)
        for other, shifts in reversed(step.elsewhere):
            other.undo(shifts)
        for expert, worker in reversed(step.added):
            self._layout.drop(self._layer, expert, worker)
            level.holders[expert].remove(worker)
            del self._on_hosts[expert][hosts[worker]]
        for layer, expert, worker in reversed(step.dropped):
            self._layout.add(layer, expert, worker)
            self._levels[layer].holders[expert].append(worker)
            if layer == self._layer:
                self._on_hosts[expert][hosts[worker]] = worker
        self._touched(*moved)
