"""Pin workers on this machine: what options ask for, what the machine has, and what others use of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from colibri.cluster.machine.pinning_check import Measure, check_place
from colibri.cluster.machine.pinning_plan import (
    PinningPlan,
    Wanted,
    WorkerPinning,
    plan_joining,
    plan_pinning,
)
from colibri.cluster.machine.topology import Topology
from colibri.deployment.pinning import AUTO, CPU, PinningOptions
from colibri.errors import ConfigError, PinningRefused
from colibri.expert_service.cpu_locks import CpuLocks, whose
from colibri.expert_service.read_bandwidth import measure_read_bandwidth

#: How long to wait for CPUs that workers of others have: those of a server that has just ended take a moment.
_FREE_S = 3.0
_POLL_S = 0.1

_Planned = TypeVar("_Planned")


class Places:
    """Plans for the workers of one deployment. Every method may raise ConfigError and PinningRefused."""

    def __init__(
        self,
        topology: Topology,
        options: PinningOptions,
        threads: int | None,
        locks: CpuLocks,
        log: Callable[[str], None],
        measure: Measure = measure_read_bandwidth,
    ) -> None:
        """threads: compute threads of every process for which the options say nothing; None: its share."""
        self._topology = topology
        self._options = options
        self._threads = threads
        self._locks = locks
        self._log = log
        self._measure = measure

    def first(self, workers: int, names: Sequence[str] | None = None) -> PinningPlan:
        """Plans for the workers that a deployment starts with.

        workers: as the command line asks.
        names: of those that start; None: w0 and so on, as many as `workers`.
        """
        for name, values in (
            ("--numa-node", self._options.numa_nodes),
            ("--cpu-threads", self._options.cpu_threads),
        ):
            if workers == 0 and any(value is not None for value in values):
                raise ConfigError(name, "auto, where this process starts no workers", _spelled(values))
            if len(values) not in (1, workers):
                raise ConfigError(name, f"one value, or one for each of {workers} workers", _spelled(values))
        starting = [f"w{number}" for number in range(workers)] if names is None else names
        wanted = self._wanted(_numbers(starting))
        plan = when_free(
            self._locks,
            lambda taken: plan_pinning(self._topology, replace(wanted, taken=taken), self._threads),
        )
        self._check(plan.workers, [f"worker {name}" for name in starting])
        return plan

    def joining(self, present: Sequence[WorkerPinning], names: Sequence[str]) -> tuple[WorkerPinning, ...]:
        """Plans for workers that join those present. A worker that comes back gets what the options say of it."""
        wanted = self._wanted(_numbers(names))
        places = when_free(
            self._locks, lambda taken: plan_joining(self._topology, replace(wanted, taken=taken), present)
        )
        if self._threads is not None and not any(wanted.cpu_threads):
            places = tuple(replace(place, threads=self._threads) for place in places)
        self._check(places, [f"worker {name}" for name in names])
        return places

    def _wanted(self, numbers: Sequence[int]) -> Wanted:
        return Wanted(
            len(numbers),
            _each(self._options.numa_nodes, numbers),
            _each(self._options.cpu_threads, numbers),
            gpus=any(device != CPU for device in self._options.devices),
            cards=_cards(self._options.devices, numbers),
            without_gpu=_on_cpu(self._options.devices, numbers),
            share=self._options.share,
        )

    def _check(self, places: Sequence[WorkerPinning], names: Sequence[str]) -> None:
        for place, who in zip(places, names, strict=True):
            crossing = check_place(
                self._topology, place, self._measure, allow=self._options.cross_node, who=who
            )
            if crossing:
                self._log(f"{who}: CROSSES NUMA NODES: {crossing}")


def when_free(
    locks: CpuLocks,
    plan: Callable[[dict[int, int]], _Planned],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _Planned:
    """Returns `plan` of the CPUs that others have. If it refuses and others have some, tries again for a moment."""
    until = clock() + _FREE_S
    while True:
        taken = locks.taken()
        try:
            return plan(taken)
        except PinningRefused as error:
            if not taken or clock() >= until:
                raise PinningRefused(f"{error.message}{whose(taken)}", peer=error.peer) from None
        sleep(_POLL_S)


def _numbers(names: Sequence[str]) -> list[int]:
    return [int(name.removeprefix("w")) for name in names]


def _cards(devices: Sequence[str], numbers: Sequence[int]) -> tuple[int | None, ...]:
    """Returns N of each 'cuda:N'; None for others."""
    cards = [int(device.removeprefix("cuda:")) if ":" in device else None for device in devices]
    return _each(cards, numbers)


def _on_cpu(devices: Sequence[str], numbers: Sequence[int]) -> frozenset[int]:
    """Returns the positions of workers without a GPU. If some named devices are CPUs, all workers beyond the names are
    on CPUs too.
    """
    named = [device == CPU for device in devices]
    if len(named) == 1 or not any(named):
        return frozenset()
    return frozenset(
        position for position, number in enumerate(numbers) if number >= len(named) or named[number]
    )


def _spelled(values: Sequence[int | None]) -> str:
    return ",".join(AUTO if value is None else str(value) for value in values)


def _each(values: Sequence[int | None], numbers: Sequence[int]) -> tuple[int | None, ...]:
    """Returns the values of the workers with these numbers. One value stands for all; workers beyond several values
    have none.
    """
    if len(values) == 1:
        return tuple(values) * len(numbers)
    return tuple(values[number] if number < len(values) else None for number in numbers)
