"""Get hosts for workers: placement groups, and a report by a deadline of what is missing."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from colibri.cluster.ray.options import RESOURCE, RayOptions, Spread
from colibri.cluster.ray.session import api, living_nodes
from colibri.cluster.ray.shortage import needs_and_has
from colibri.deadline import Clock, Deadline
from colibri.errors import DeadlineExpired

#: One question to Ray whether a group is placed.
_LOOK_S = 0.5


class PlacementGroups:
    """One placement group for the workers of the start, and one for each that comes later. Any thread may call.

    Ray itself waits for resources without a bound or a word; `wait` has both.
    """

    def __init__(self, options: RayOptions, clock: Clock = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._start: tuple[str, ...] = ()
        self._groups: dict[str, Any] = {}
        self._bundles: dict[str, int] = {}

    def open(self, names: tuple[str, ...]) -> None:
        """Asks for places for the workers of the start: all of them get one, or none."""
        strategy = "STRICT_SPREAD" if self._options.spread is Spread.HOSTS else "SPREAD"
        group = self._group(len(names), strategy)
        with self._lock:
            self._start = names
            self._groups.update(dict.fromkeys(names, group))

    def wait(self, name: str, cancelled: Callable[[], bool]) -> None:
        """Waits until the worker has a place or `cancelled`. Raises DeadlineExpired with what is needed and what there
        is.
        """
        group = self._group_of(name)
        deadline = Deadline.after(self._options.place_s, self._clock)
        while not (cancelled() or group.wait(timeout_seconds=deadline.bound(_LOOK_S, self._clock))):
            if deadline.expired(self._clock):
                raise self.shortage(name)
        if not cancelled() and name in self._start:
            self._assign(group)

    def has(self, name: str) -> bool:
        """Whether a place is kept for the worker."""
        with self._lock:
            return name in self._groups

    def strategy(self, name: str) -> Any:
        """Returns the scheduling strategy for an actor's options."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        with self._lock:
            return PlacementGroupSchedulingStrategy(
                placement_group=self._groups[name], placement_group_bundle_index=self._bundles.get(name, 0)
            )

    def shortage(self, name: str) -> DeadlineExpired:
        """Returns the error for a worker that got no place in all that time."""
        ray = api()
        start = name in self._start
        free = float(ray.available_resources().get(RESOURCE, 0.0))
        told = needs_and_has(
            self._start if start else (name,),
            self._options.spread if start else Spread.ANY,
            self._options.hosts,
            self._options.gpus,
            living_nodes(),
            free,
        )
        return DeadlineExpired(f"no place for {name} within {self._options.place_s:g} s: {told}", peer="ray")

    def release(self, name: str) -> None:
        """Frees the place of a worker that came later. Workers of the start keep theirs until `close`, since a group
        is whole.
        """
        with self._lock:
            group = None if name in self._start else self._groups.pop(name, None)
        if group is not None:
            _remove(group)

    def close(self) -> None:
        with self._lock:
            groups = {id(group): group for group in self._groups.values()}
            self._groups.clear()
        for group in groups.values():
            _remove(group)

    def _group_of(self, name: str) -> Any:
        with self._lock:
            group = self._groups.get(name)
        if group is None:
            group = self._group(1, "SPREAD")
            with self._lock:
                self._groups[name] = group
        return group

    def _group(self, count: int, strategy: str) -> Any:
        from ray.util.placement_group import placement_group

        bundle: dict[str, float] = {RESOURCE: 1.0}
        if self._options.gpus:
            bundle["GPU"] = float(self._options.gpus)
        return placement_group([dict(bundle) for _ in range(count)], strategy=strategy)

    def _assign(self, group: Any) -> None:
        """Assigns places once the group of the start is placed: neighbours by name go to different hosts, since they
        hold each other's replicas.
        """
        from ray.util.placement_group import placement_group_table

        with self._lock:
            if self._bundles or not self._start:
                return
            hosts = {node.id: node.host.address for node in living_nodes()}
            table = placement_group_table(group)["bundles_to_node_id"]
            by_host: dict[str, list[int]] = defaultdict(list)
            for bundle, node in sorted(table.items()):
                by_host[hosts.get(node, node)].append(bundle)
            if len(by_host) < self._options.hosts:
                raise DeadlineExpired(
                    f"replicas on {self._options.hosts} different hosts were asked for, and Ray put all workers on "
                    f"{len(by_host)}: {', '.join(by_host)}",
                    peer="ray",
                )
            self._bundles = dict(zip(self._start, interleave(list(by_host.values())), strict=True))


def interleave(lists: list[list[int]]) -> list[int]:
    """Merges lists by taking one item of each in turn, longest list first."""
    left = sorted((list(items) for items in lists), key=len, reverse=True)
    found = []
    while left:
        found += [items.pop(0) for items in left]
        left = [items for items in left if items]
    return found


def _remove(group: Any) -> None:
    import contextlib

    from ray.util.placement_group import remove_placement_group

    with contextlib.suppress(Exception):  # Ray may have ended first
        remove_placement_group(group)
