"""What a planner is asked, checked: workers, loads, the present placement, and what moving costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from colibri.cluster.experts.holders import ExpertId, Holders
from colibri.errors import InvalidInput, OverBudget
from colibri.numerics_homes import NumericsHomes

#: [layer][expert]: what is expected of each, in any one unit, as rows per second.
Loads = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker as planning sees it.

    host: workers with the same host fail together; empty: it fails alone.
    speed: in any one unit.
    memory: bytes of experts; None: no limit.
    """

    name: str
    host: str = ""
    speed: float = 1.0
    memory: int | None = None

    @property
    def domain(self) -> str:
        return self.host or f"worker {self.name}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A planning problem. Raises InvalidInput and OverBudget, with what is needed and what there is.

    workers: those that are to hold experts; others that `holders` names are gone.
    holders: the present placement.
    replicas: hosts that must have a copy of each expert; for load there may be more copies, on any worker.
    loads: None: unknown.
    pinned: experts whose holders stay.
    goal: largest load of a layer over the mean, by speed, at which copies stop being added.
    trigger: a layer at or below this ratio is left as it is.
    cost_per_byte: in the loads' unit per unit of speed: a layer's copies must shorten its slowest worker by more.
    spare: without a memory limit, copies that a worker may hold beyond its even part, as a share of it, and at
        least twice its part of those that level all layers; 0: none.
    even: move experts just to even out numbers or loads.
    homes: which workers may hold which experts; None: all. An expert then has as many copies as the workers of its
        home allow.
    """

    workers: tuple[Worker, ...]
    holders: Holders
    replicas: int = 1
    loads: Loads | None = None
    expert_bytes: int = 1
    pinned: frozenset[ExpertId] = frozenset()
    goal: float = 1.02
    trigger: float = 1.02
    cost_per_byte: float = 0.0
    spare: float = 0.25
    even: bool = True
    homes: NumericsHomes | None = None

    def __post_init__(self) -> None:
        if not self.workers:
            raise InvalidInput("workers", "at least one", "none")
        twice = [name for name, count in Counter(worker.name for worker in self.workers).items() if count > 1]
        if twice:
            raise InvalidInput("workers", "names that differ", f"{twice[0]} twice")
        for worker in self.workers:
            if not (isfinite(worker.speed) and worker.speed > 0):
                raise InvalidInput(f"workers: {worker.name}: speed", "a finite number above 0", worker.speed)
            if worker.memory is not None and worker.memory < 0:
                raise InvalidInput(f"workers: {worker.name}: memory", "bytes, not negative", worker.memory)
        if not self.holders or not self.holders[0]:
            raise InvalidInput("holders", "at least one layer of experts", "none")
        for layer, experts in enumerate(self.holders):
            if len(experts) != self.experts:
                raise InvalidInput(f"holders[{layer}]", f"{self.experts} experts", len(experts))
        if self.replicas < 1:
            raise InvalidInput("replicas", "at least 1", self.replicas)
        for name, value, least in (
            ("expert_bytes", self.expert_bytes, 1),
            ("goal", self.goal, 1.0),
            ("trigger", self.trigger, 1.0),
            ("cost_per_byte", self.cost_per_byte, 0.0),
            ("spare", self.spare, 0.0),
        ):
            if not isfinite(value) or value < least:
                raise InvalidInput(name, f"at least {least:g}", value)
        for layer, expert in self.pinned:
            if not (0 <= layer < self.layers and 0 <= expert < self.experts):
                raise InvalidInput(
                    "pinned", f"experts of {self.layers} layers of {self.experts}", (layer, expert)
                )
        if self.loads is not None:
            check_loads(self.loads, self.layers, self.experts)
        self._check_hosts()
        self._check_memory()

    @property
    def layers(self) -> int:
        return len(self.holders)

    @property
    def experts(self) -> int:
        return len(self.holders[0])

    def room(self, worker: Worker) -> int | None:
        """Returns how many experts fit into the worker's memory; None: no limit."""
        return None if worker.memory is None else worker.memory // self.expert_bytes

    def _check_hosts(self) -> None:
        hosts = {worker.domain for worker in self.workers}
        if self.replicas > len(hosts):
            what = "workers" if not any(worker.host for worker in self.workers) else "hosts"
            raise InvalidInput("replicas", f"at most {len(hosts)} (the number of {what})", self.replicas)

    def _check_memory(self) -> None:
        """Checks that the wanted copies fit. A host holds each expert at most once, so its room is at most the number
        of experts.
        """
        rooms: dict[str, int] = {}
        most = self.layers * self.experts
        for worker in self.workers:
            room = self.room(worker)
            rooms[worker.domain] = min(most, rooms.get(worker.domain, 0) + (most if room is None else room))
        needed, has = self.replicas * most, sum(rooms.values())
        if needed > has:
            raise OverBudget(
                f"memory: {self.replicas} copies of {most} experts of {self.expert_bytes} bytes need room for {needed} "
                f"({needed * self.expert_bytes} bytes), and the workers have room for {has} "
                f"({has * self.expert_bytes} bytes; copies of an expert are on different hosts)"
            )


def check_loads(loads: Sequence[Sequence[float]], layers: int, experts: int) -> None:
    """Raises InvalidInput, naming the layer, for loads of the wrong shape or value."""
    if len(loads) != layers:
        raise InvalidInput("loads", f"{layers} layers", len(loads))
    for layer, row in enumerate(loads):
        if len(row) != experts:
            raise InvalidInput(f"loads[{layer}]", f"{experts} experts", len(row))
        if not all(isfinite(load) and load >= 0 for load in row):
            bad = next(load for load in row if not (isfinite(load) and load >= 0))
            raise InvalidInput(f"loads[{layer}]", "finite numbers, none negative", bad)
