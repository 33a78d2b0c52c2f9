"""Which worker gets which CPUs: pure arithmetic over a Topology, nothing is pinned here.

Each worker lives on one NUMA node, where its memory is. Workers go to nodes in proportion to their CPUs; on a
node they get disjoint whole cores while cores last, then disjoint hardware threads, then CPUs shared
round-robin, which is reported as oversubscribed: such workers take turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from colibri.cluster.topology import NumaNode, Topology
from colibri.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """`numa_node`: -1 where the kernel names none. `threads`: compute threads, at most len(cpus) unless asked
    for. `oversubscribed`: shares a CPU, or its CPU time, with another worker."""

    numa_node: int
    cpus: tuple[int, ...]
    threads: int
    oversubscribed: bool


@dataclass(frozen=True, slots=True)
class PinningPlan:
    """`coordinator_cpus`, `coordinator_threads`: of the process that starts the workers. It computes while
    they wait and the other way round, so it shares their CPUs."""

    workers: tuple[WorkerPlace, ...]
    coordinator_cpus: tuple[int, ...]
    coordinator_threads: int

    @property
    def oversubscribed(self) -> bool:
        return any(worker.oversubscribed for worker in self.workers)


def plan_pinning(topology: Topology, workers: int, threads: int | None = None) -> PinningPlan:
    """Plan for `workers` (0 or more) workers; `threads` overrides the number of compute threads of every
    process.

    Raises InvalidInput where a count is out of range.
    """
    if workers < 0:
        raise InvalidInput("workers", "0 or more", workers)
    if threads is not None and not 1 <= threads <= 1024:
        raise InvalidInput("threads", "1 .. 1024", threads)
    nodes = [node for node in topology.nodes if node.cpus]
    homes = _homes(nodes, workers)
    pins: list[WorkerPlace | None] = [None] * workers
    for node in nodes:
        tenants = [worker for worker, home in enumerate(homes) if home == node.id]
        for worker, (cpus, shared) in zip(tenants, _split(node.cores, len(tenants)), strict=True):
            share = threads or max(1, len(cpus) * topology.cpu_budget // len(topology.cpus))
            starved = workers > topology.cpu_budget
            pins[worker] = WorkerPlace(node.id, cpus, share, shared or starved)
    planned = tuple(pin for pin in pins if pin is not None)
    cpus = tuple(sorted({cpu for pin in planned for cpu in pin.cpus})) or topology.cpus
    return PinningPlan(planned, cpus, threads or min(len(cpus), topology.cpu_budget))


def _homes(nodes: Sequence[NumaNode], workers: int) -> list[int]:
    """Node id of each worker: always the node that leaves its workers the most CPUs each, ties to the lower
    id."""
    load = {node.id: 0 for node in nodes}
    homes = []
    for _ in range(workers):
        best = max(nodes, key=lambda node: (len(node.cpus) / (load[node.id] + 1), -node.id))
        load[best.id] += 1
        homes.append(best.id)
    return homes


def _split(cores: Sequence[tuple[int, ...]], workers: int) -> list[tuple[tuple[int, ...], bool]]:
    """(CPUs, shared) of each worker on one node."""
    cpus = [cpu for core in cores for cpu in core]
    if workers > len(cpus):
        turns = [cpus[worker % len(cpus)] for worker in range(workers)]
        return [((cpu,), turns.count(cpu) > 1) for cpu in turns]
    units = cores if workers <= len(cores) else [(cpu,) for cpu in cpus]
    bounds = [len(units) * worker // workers for worker in range(workers + 1)] if workers else [0]
    return [
        (tuple(sorted(cpu for unit in units[first:last] for cpu in unit)), False)
        for first, last in pairwise(bounds)
    ]


def choose_pins(
    planned: Sequence[WorkerPlace], taken: Sequence[WorkerPlace], count: int
) -> tuple[WorkerPlace, ...]:
    """`count` of the `planned` places for workers that join others, whose own places stay: those that share the
    fewest CPUs with them, and the first of those. Workers that do share are oversubscribed."""
    used = Counter(cpu for pin in taken for cpu in pin.cpus)
    left = list(planned)
    chosen = []
    for _ in range(count):
        best = min(left or planned, key=lambda pin: sum(used[cpu] for cpu in pin.cpus) / len(pin.cpus))
        if left:
            left.remove(best)
        shared = best.oversubscribed or any(used[cpu] for cpu in best.cpus)
        chosen.append(replace(best, oversubscribed=shared))
        used.update(best.cpus)
    return tuple(chosen)
