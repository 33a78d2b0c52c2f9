"""Add copies of a layer's hot experts, step by step until the layer is level; keep those that are worth their bytes.

A step takes the most loaded worker. An expert that it answers for is copied to a least loaded one, so large a part of
it as levels one of the two. Where all that could take something hold it already and have enough, one of them gives away
of its other experts first. A full worker gives up a copy whose part another holder can take; where nobody has room, two
workers exchange an expert each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from colibri.cluster.placing.planner.layout import Layout
from colibri.cluster.placing.planner.queues import Queues
from colibri.cluster.placing.planner.spares import Spares
from colibri.row_division import SLACK, Levelling

#: Least loaded workers that are looked at for a copy, and for an exchange.
_TAKERS, _PARTNERS = 512, 8
#: Copies and exchanges of a layer, at most, for each worker and each expert.
_STEPS = 4
#: A layer whose slowest worker would be quicker by less, of the mean, is left as it is: divisions differ by SLACK.
_LEAST_GAIN = 0.015
#: What is aimed at is raised so much, where it cannot be had.
_RAISE = 1.05
#: A whole expert is moved rather than divided, if it is at least so much of what is to be moved.
_WHOLE = 0.85


@dataclass(slots=True)
class Step:
    """Undo record of one copy or exchange.

    shifts: shifts of load made before it.
    added, dropped: (expert, worker) and (layer, expert, worker) of holders.
    elsewhere: shifts in other layers.
    ratio: the layer's, afterwards.
    """

    shifts: int
    added: list[tuple[int, int]] = field(default_factory=list)
    dropped: list[tuple[int, int, int]] = field(default_factory=list)
    elsewhere: list[tuple[Levelling, int]] = field(default_factory=list)
    ratio: float = 0.0


class HotReplication:
    """Levels one layer by copies of its hot experts."""

    def __init__(self, layout: Layout, levels: list[Levelling], spares: Spares, layer: int) -> None:
        self._layout = layout
        self._levels = levels
        self._level = level = levels[layer]
        self._spares = spares
        self._layer = layer
        self._steps: list[Step] = []
        self._queues = Queues(level, layout)
        #: Workers that no other layer's copy can leave.
        self._rooted: set[int] = set()
        #: By expert: who has a copy.
        self._held = [set(holders) for holders in layout.holders[layer]]
        self._goal = layout.problem.goal

    def run(self) -> None:
        level, problem = self._level, self._layout.problem
        before = level.ratio()
        most = _STEPS * (len(level.workers) + len(level.loads))
        while len(self._steps) < most:
            if (worker := self._queues.fullest(self._goal)) is None:
                break
            step = self._relieve(worker)
            if step is None:
                # Memory or hosts forbid it: the others may yet have less than now, if more than that.
                if self._queues.top() <= _RAISE:
                    break
                self._queues.aim(self._queues.least * max(_RAISE, self._queues.open_part()))
                continue
            step.ratio = self._queues.top() * self._queues.least
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

    def _relieve(self, source: int) -> Step | None:
        """Reduce the source's load: shift to an existing holder, else add a copy, else relieve a holder first, else
        swap. Returns the step, or None where nothing helps."""
        level = self._level
        for expert in level.on[source]:
            for holder in level.holders[expert]:
                if holder != source and self._queues.lacks(holder):
                    free = Step(level.shifts)
                    self._pull(source, holder, {holder: (source, expert)})
                    return free
        excess = level.load[source] - self._queues.even[source]
        step = self._copy_from(source, excess)
        if step is not None:
            return step
        came = level.reach(source)
        for giver in came:
            if giver == source:
                continue
            step = Step(level.shifts) if self._queues.lacks(giver) else self._copy_from(giver, excess)
            if step is not None:
                # It may just have moved that very expert to a neighbour.
                if giver in level.holders[came[giver][1]]:
                    self._pull(source, giver, came)
                return step
        step = self._swap(source, excess, excess)
        for giver in list(came)[1:_PARTNERS] if step is None else ():
            if (step := self._swap(giver, excess, 0.0)) is not None:
                if giver in level.holders[came[giver][1]]:
                    self._pull(source, giver, came)
                break
        return step

    def _pull(self, source: int, target: int, came: Mapping[int, tuple[int, int]]) -> None:
        level = self._level
        chain, worker = [target], target
        while worker != source:
            worker = came[worker][0]
            chain.append(worker)
        room = self._queues.even[target] * self._goal - level.load[target]
        level.pull(source, target, came, max(0.0, min(level.load[source] - self._queues.even[source], room)))
        self._queues.touched(*chain)
        self._queues.back(chain)

    def _copy_from(self, source: int, excess: float) -> Step | None:
        level, layout = self._level, self._layout
        pieces = sorted(((level.pieces[e][source], -e) for e in level.on[source]), reverse=True)
        seen: list[int] = []
        while len(seen) < _TAKERS and (target := self._queues.emptiest()) is not None:
            step = Step(level.shifts)
            if not self._has_room(target) and not self._vacate(target, source, step):
                self._queues.shut(target)
                continue
            seen.append(target)
            amount = min(excess, self._queues.even[target] - level.load[target])
            expert = None if target == source else self._choose(pieces, target, amount)
            if expert is None:
                if step.dropped:
                    self._undo(step)
                continue
            piece = level.pieces[expert][source]
            whole = piece <= amount * (1 + SLACK)
            self._make_room(target, step)
            self._add(expert, target, step)
            level.shift(expert, source, target, piece if whole else amount)
            if whole and layout.may_go(self._layer, expert, source):
                self._spares.offer(self._layer, expert, source)
            self._queues.touched(source, target)
            self._queues.back([source, *seen])
            return step
        self._queues.back(seen)
        return None

    def _choose(self, pieces: list[tuple[float, int]], target: int, amount: float) -> int | None:
        """Returns the largest piece that fits whole, if it moves enough; else the largest piece, to be divided."""
        largest = None
        for piece, number in pieces:
            expert = -number
            if piece <= 0 or target in self._held[expert] or self._is_pinned(expert):
                continue
            if piece <= amount * (1 + SLACK):
                return expert if largest is None or piece >= _WHOLE * amount else largest
            if largest is None:
                largest = expert
        return largest

    def _is_pinned(self, expert: int) -> bool:
        return (self._layer, expert) in self._layout.problem.pinned

    def _swap(self, source: int, excess: float, beyond: float) -> Step | None:
        """Exchanges one whole expert each with a worker that lacks load but has no room.

        excess: load that is to leave `source`.
        beyond: by how much the other worker may then exceed its part.
        """
        level, layer = self._level, self._layer
        best: tuple[float, int, int, int] | None = None
        mine = [(level.pieces[e][source], e) for e in level.on[source]]
        lacking = sorted((level.load[w] - self._queues.even[w], w) for w in self._queues.full if w != source)
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
        step = Step(level.shifts)
        for number, giver, taker in ((expert, source, target), (other, target, source)):
            self._add(number, taker, step)
            level.shift(number, giver, taker, level.pieces[number][giver])
            self._drop(layer, number, giver, step)
        self._queues.touched(source, target)
        self._queues.back([source, target])
        return step

    def _can_swap(self, expert: int, giver: int, taker: int) -> bool:
        """Whether the giver's copy can move to the taker."""
        if taker in self._held[expert] or self._is_pinned(expert):
            return False
        return self._layout.may_go(self._layer, expert, giver, but=taker)

    def _has_room(self, worker: int) -> bool:
        layout = self._layout
        if layout.counts[worker] < layout.limits[worker]:
            return True
        spare = self._spares.take(worker)
        if spare is None:
            return False
        self._spares.offer(*spare, worker)
        return True

    def _vacate(self, worker: int, source: int, step: Step) -> bool:
        """Makes room on a worker: lets another holder take over what it answers for of some expert, the least first,
        and drops its copy, in this layer or another.
        """
        if self._vacate_in(self._layer, worker, source, self._queues.even, step):
            return True
        if worker in self._rooted:
            return False
        for layer, level in enumerate(self._levels):
            if layer != self._layer and self._vacate_in(layer, worker, -1, level.even, step):
                return True
        self._rooted.add(worker)
        return False

    def _vacate_in(self, layer: int, worker: int, source: int, even: Sequence[float], step: Step) -> bool:
        """Does so in one layer. source: leaves its experts alone, since something of them is to come here."""
        layout, level = self._layout, self._levels[layer]
        for piece, expert in sorted((level.pieces[e][worker], e) for e in level.on[worker]):
            holders = level.holders[expert]
            if source in holders or not layout.may_go(layer, expert, worker):
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
                        self._queues.touched(worker, other)
                        self._queues.back([other])
                    return True
        return False

    def _make_room(self, worker: int, step: Step) -> None:
        if self._layout.counts[worker] >= self._layout.limits[worker]:
            spare = self._spares.take(worker)
            if spare is not None:
                self._drop(*spare, worker, step)

    # What can be undone

    def _add(self, expert: int, worker: int, step: Step) -> None:
        self._layout.add(self._layer, expert, worker)
        self._level.add_holder(expert, worker)
        self._held[expert].add(worker)
        step.added.append((expert, worker))

    def _drop(self, layer: int, expert: int, worker: int, step: Step) -> None:
        self._layout.drop(layer, expert, worker)
        if layer == self._layer:
            self._held[expert].discard(worker)
        self._levels[layer].holders[expert].remove(worker)
        step.dropped.append((layer, expert, worker))

    def _undo(self, step: Step) -> None:
        level = self._level
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
            self._held[expert].discard(worker)
        for layer, expert, worker in reversed(step.dropped):
            self._layout.add(layer, expert, worker)
            self._levels[layer].holders[expert].append(worker)
            if layer == self._layer:
                self._held[expert].add(worker)
        self._queues.touched(*moved)
