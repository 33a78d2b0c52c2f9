"""Placement: which worker holds which expert, as immutable snapshots.

Belongs here: the snapshot types, the simplest planner and the thread-safe holder of the newest snapshot. Does
not belong here: starting workers, loading weights, choosing by load.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from colibri.errors import InvalidInput
from colibri.row_division import PARTS, Division, divide
from colibri.security.channel import PLAIN, ChannelSecurity


@dataclass(frozen=True, slots=True)
class Placement:
    """Which workers hold each expert, and how they share its rows. Immutable.

    holders: [layer][expert] -> indices into `workers`, in order of preference.
    loads: [layer][expert], expected load, in any one unit per layer. None: the first holder answers.
    speeds: of each worker, in any one unit. Loads and speeds say how much each holder of an expert answers for.
    epoch: at least 1; grows with every change and travels in each request.

    Raises InvalidInput if layers differ in their number of experts, a holder is out of range, named twice or
    missing, or a load or speed is negative or not finite.
    """

    epoch: int
    workers: tuple[str, ...]
    holders: tuple[tuple[tuple[int, ...], ...], ...]
    loads: tuple[tuple[float, ...], ...] | None = None
    speeds: tuple[float, ...] | None = None
    _owners: tuple[NDArray[np.uint32], ...] = field(init=False, repr=False, compare=False)
    _partners: tuple[frozenset[int], ...] = field(init=False, repr=False, compare=False)
    _divisions: dict[int, Division] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.epoch < 1:
            raise InvalidInput("placement.epoch", "at least 1", self.epoch)
        if len(set(self.workers)) != len(self.workers):
            raise InvalidInput("placement.workers", "names that differ", self.workers)
        owners = []
        partners: list[set[int]] = [set() for _ in self.workers]
        for layer, experts in enumerate(self.holders):
            if len(experts) != len(self.holders[0]):
                raise InvalidInput(
                    f"placement.holders[{layer}]", f"{len(self.holders[0])} experts", len(experts)
                )
            for expert, holders in enumerate(experts):
                name = f"placement.holders[{layer}][{expert}]"
                if not holders:
                    raise InvalidInput(name, "at least one worker", "none")
                if len(set(holders)) != len(holders):
                    raise InvalidInput(name, "workers that differ", holders)
                if min(holders) < 0 or max(holders) >= len(self.workers):
                    raise InvalidInput(name, f"indices below {len(self.workers)}", holders)
                if len(holders) > 1:
                    for holder in holders:
                        partners[holder].update(holders)
            owner = np.array([holders[0] for holders in experts], np.uint32)
            owner.flags.writeable = False
            owners.append(owner)
        object.__setattr__(self, "_owners", tuple(owners))
        stand_ins = tuple(frozenset(others - {index}) for index, others in enumerate(partners))
        object.__setattr__(self, "_partners", stand_ins)
        object.__setattr__(self, "_divisions", {})
        self._check_measures()

    @property
    def layers(self) -> int:
        return len(self.holders)

    @property
    def experts(self) -> int:
        return len(self.holders[0]) if self.holders else 0

    def owner(self, layer: int) -> NDArray[np.uint32]:
        """Returns the first holder of each expert of a layer: uint32 [experts], read-only, made once."""
        return self._owners[layer]

    def division(self, layer: int) -> Division:
        """Returns who answers for how much of each expert of a layer while all workers are in order
        (colibri.row_division).
        """
        division = self._divisions.get(layer)
        if division is None:
            holders = self.holders[layer]
            if self.loads is None:
                division = tuple(((names[0], PARTS),) for names in holders)
            else:
                division = divide(holders, self.loads[layer], self.speeds)
            self._divisions[layer] = division
        return division

    def partners(self, worker_index: int) -> frozenset[int]:
        """Returns the workers that also hold some expert of this one."""
        return self._partners[worker_index]

    def experts_of(self, worker_index: int) -> list[tuple[int, int]]:
        """Returns the (layer, expert) ids that a worker holds, as first holder or replica, ascending."""
        return [
            (layer, expert)
            for layer, experts in enumerate(self.holders)
            for expert, holders in enumerate(experts)
            if worker_index in holders
        ]

    def _check_measures(self) -> None:
        if self.speeds is not None:
            if len(self.speeds) != len(self.workers):
                raise InvalidInput(
                    "placement.speeds", f"{len(self.workers)}, one per worker", len(self.speeds)
                )
            if not all(isfinite(speed) and speed > 0 for speed in self.speeds):
                raise InvalidInput("placement.speeds", "finite numbers above 0", self.speeds)
        if self.loads is not None:
            if [len(layer) for layer in self.loads] != [len(layer) for layer in self.holders]:
                expected = f"{self.layers} layers of {self.experts} experts"
                raise InvalidInput("placement.loads", expected, f"{len(self.loads)} layers")
            for layer, loads in enumerate(self.loads):
                if not all(isfinite(load) and load >= 0 for load in loads):
                    raise InvalidInput(f"placement.loads[{layer}]", "finite numbers, none negative", loads)


def spread(layers: int, experts: int, workers: Sequence[str], replicas: int = 1, epoch: int = 1) -> Placement:
    """Places experts round-robin over the workers, shifted by one per layer, so that remainders even out over the
    layers.

    Replicas of an expert are on different workers. Raises InvalidInput.
    """
    if layers < 1:
        raise InvalidInput("layers", "at least 1", layers)
    if experts < 1:
        raise InvalidInput("experts", "at least 1", experts)
    if not workers:
        raise InvalidInput("workers", "at least one", "none")
    if not 1 <= replicas <= len(workers):
        raise InvalidInput("replicas", f"1 to {len(workers)} (the number of workers)", replicas)
    count = len(workers)
    holders = tuple(
        tuple(tuple((expert + layer + r) % count for r in range(replicas)) for expert in range(experts))
        for layer in range(layers)
    )
    return Placement(epoch, tuple(workers), holders)


@dataclass(frozen=True, slots=True)
class WorkerEndpoint:
    """One incarnation of a worker, and how to reach it.

    target: "unix:/path" or "host:port".
    incarnation: never reused.
    security: of channels to it.
    """

    name: str
    incarnation: int
    target: str
    security: ChannelSecurity = PLAIN


@dataclass(frozen=True, slots=True)
class Membership:
    """A placement, and the endpoints of live workers by name; a dead worker has none. Immutable once published."""

    placement: Placement
    endpoints: Mapping[str, WorkerEndpoint]


class Reading:
    """One call's use of the directory: `with directory.reading() as reading`. Never blocks. Belongs to one thread.

    The call counts as a reader of `membership`, and of each snapshot that `newest` gave it, until it ends. Epochs are
    entered and left here alone.
    """

    __slots__ = ("_directory", "_entered", "membership")

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._entered: list[Membership] = []
        #: The snapshot that was in force when the call began.
        self.membership = directory.current()

    def __enter__(self) -> Reading:
        self.membership = self._directory._enter()
        self._entered.append(self.membership)
        return self

    def __exit__(self, *_: object) -> None:
        for membership in self._entered:
            self._directory._leave(membership)

    def newest(self) -> Membership:
        """Returns the snapshot in force now, of which the call is then a reader, too."""
        if self._directory.current() is not self._entered[-1]:
            self._entered.append(self._directory._enter())
        return self._entered[-1]


class Directory:
    """Holds the newest Membership. Any thread may read, publish or wait.

    Whoever sends by a snapshot stays with it (`reading`) until all its answers are in. So `wait_unused` knows when
    nobody uses an older epoch any more.
    """

    def __init__(self, membership: Membership) -> None:
        self._changed = threading.Condition()
        self._current = membership
        self._counting = threading.Lock()
        self._left = threading.Condition(self._counting)
        self._readers: dict[int, int] = {}
        self._watched_below = 0

    def current(self) -> Membership:
        return self._current

    def reading(self) -> Reading:
        """Returns a context that counts as a reader of the newest snapshot until it is left."""
        return Reading(self)

    def _enter(self) -> Membership:
        """Counts one reader of the newest snapshot, and returns it."""
        with self._counting:
            # Under the lock: whoever publishes and then waits sees this reader, or is seen by it.
            membership = self._current
            epoch = membership.placement.epoch
            self._readers[epoch] = self._readers.get(epoch, 0) + 1
        return membership

    def _leave(self, membership: Membership) -> None:
        """Counts one reader less of a snapshot that `_enter` gave."""
        epoch = membership.placement.epoch
        with self._counting:
            left = self._readers[epoch] - 1
            if left:
                self._readers[epoch] = left
                return
            del self._readers[epoch]
            if epoch < self._watched_below:
                self._left.notify_all()

    def wait_unused(self, below_epoch: int, timeout_s: float) -> bool:
        """Waits until nobody uses snapshots of epochs below `below_epoch`, at most `timeout_s` seconds. Returns
        whether that is so.

        Call it after publishing a snapshot of that epoch: nobody enters an older one then.
        """
        with self._counting:
            self._watched_below = max(self._watched_below, below_epoch)
            return self._left.wait_for(lambda: all(e >= below_epoch for e in self._readers), timeout_s)

    def publish(self, membership: Membership) -> None:
        """Replaces the snapshot. Raises InvalidInput if its epoch is older than the present one's."""
        with self._changed, self._counting:
            present = self._current.placement.epoch
            if membership.placement.epoch < present:
                raise InvalidInput(
                    "membership.placement.epoch", f"at least {present}", membership.placement.epoch
                )
            self._current = membership
            self._changed.notify_all()

    def wait_change(self, after: Membership, timeout: float) -> Membership:
        """Returns the snapshot once it is not `after`; returns `after` itself after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._current is not after, timeout)
            return self._current
