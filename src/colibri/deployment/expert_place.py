"""Pin one worker that was started by itself, as its options say, checked against the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from colibri.cluster.machine.cpu_list import MAX_CPU, format_cpu_list
from colibri.cluster.machine.pinning_check import Measure, check_place
from colibri.cluster.machine.pinning_plan import Wanted, WorkerPinning, no_such_node, plan_workers
from colibri.cluster.machine.topology import UNKNOWN_NODE, Roots, Topology, discover
from colibri.deployment.places import when_free
from colibri.errors import ConfigError
from colibri.expert_service.cpu_locks import CpuLocks
from colibri.expert_service.read_bandwidth import measure_read_bandwidth

_TRIES = 64


@dataclass(frozen=True, slots=True)
class PlaceWish:
    """The options, as on the command line. cpus: None: chosen here; numa_node, cpu_threads: None: auto."""

    cpus: Sequence[int] | None = None
    numa_node: int | None = None
    cpu_threads: int | None = None
    share: bool = False
    cross_node: bool = False


def expert_place(
    wish: PlaceWish,
    locks: CpuLocks,
    roots: Roots | None = None,
    measure: Measure = measure_read_bandwidth,
) -> tuple[WorkerPinning, str]:
    """Returns the pinning, and a description of it if it spans nodes (empty: it does not).

    Raises ConfigError for CPUs and nodes that this machine does not have, PinningRefused for a pinning that spans
    nodes and for CPUs that other workers have, unless that was allowed.
    """
    roots = Roots() if roots is None else roots
    if wish.cpus is not None:
        topology = discover(
            roots, range(MAX_CPU + 1)
        )  # what this process was started with binds nobody who names CPUs
        place = _named(topology, wish, wish.cpus)
    elif wish.numa_node == UNKNOWN_NODE:
        topology = discover(roots)
        place = WorkerPinning(UNKNOWN_NODE, (), wish.cpu_threads or topology.cpu_budget, wish.share)
    else:
        topology = discover(roots)
        wanted = ((wish.numa_node,), (wish.cpu_threads,))
        for _ in range(_TRIES):
            (place,) = when_free(
                locks,
                lambda taken: plan_workers(topology, Wanted(1, *wanted, share=wish.share, taken=taken)),
            )
            if not locks.take(place.cpus, share=place.oversubscribed):
                break  # else somebody who started at the same moment was quicker: there may be others left
    return place, check_place(topology, place, measure, allow=wish.cross_node)


def _named(topology: Topology, wish: PlaceWish, cpus: Sequence[int]) -> WorkerPinning:
    missing = set(cpus).difference(topology.cpus)
    if missing or not cpus:
        usable = format_cpu_list(topology.cpus)
        raise ConfigError(
            "--cpus", f"CPUs that are online and allowed here ({usable})", format_cpu_list(cpus) or "none"
        )
    node = wish.numa_node
    if node is None:
        counted = Counter({home.id: len(set(cpus).intersection(home.cpus)) for home in topology.nodes})
        node = counted.most_common(1)[0][0]
    elif node != UNKNOWN_NODE and topology.node(node) is None:
        raise no_such_node(topology, node)
    return WorkerPinning(node, tuple(sorted(cpus)), wish.cpu_threads or len(cpus), wish.share)
