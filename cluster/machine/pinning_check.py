"""Check whether a worker's CPUs, memory and GPU lie on one NUMA node, and what it costs if not. Pure except for
`measure`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from colibri.cluster.machine.cpu_list import format_cpu_list
from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.machine.topology import LOCAL_DISTANCE, UNKNOWN_NODE, Topology
from colibri.errors import PinningRefused

#: (CPU, node) -> bytes per second that it reads of that node's memory; None: it cannot be had.
Measure = Callable[[int, int], float | None]


@dataclass(frozen=True, slots=True)
class Crossing:
    """A pinning that spans nodes. where: what lies on which node; cost: of reading across, measured or estimated."""

    where: str
    cost: str

    def __str__(self) -> str:
        return f"{self.where}: {self.cost}"


def find_crossing(topology: Topology, place: WorkerPinning, measure: Measure) -> Crossing | None:
    """Returns the crossing, or None if all lies on one node or the kernel does not say.

    CPUs or a GPU of an unknown node count as no crossing. Without a memory policy, pages lie where they are first
    touched.
    """
    memory = place.numa_node
    homes = topology.nodes_of(place.cpus)
    known = [node for node in homes if node != UNKNOWN_NODE]
    card = next((gpu for gpu in topology.gpus if gpu.address == place.gpu), None)
    far_gpu = (
        card is not None and card.node != UNKNOWN_NODE and any(node != card.node for node in [*known, memory])
    )
    if memory == UNKNOWN_NODE or not (far_gpu or any(node != memory for node in known)):
        return None

    parts = [
        f"CPUs {format_cpu_list(set(place.cpus) & set(_cpus(topology, node)))} on node {node}"
        for node in known
    ]
    parts.append(f"memory on node {memory}")
    costs = [_cost(topology, place, node, memory, measure) for node in known if node != memory]
    if card is not None:
        parts.append(
            f"GPU {card.address} on "
            + (f"node {card.node}" if card.node != UNKNOWN_NODE else "an unknown node")
        )
        if card.node not in (UNKNOWN_NODE, memory):
            costs.append(
                f"copies to the GPU cross from node {memory} to {card.node}, {_estimate(topology, card.node, memory)}"
            )
        elif card.node not in (UNKNOWN_NODE, *known):
            costs.append(
                f"its CPUs drive the GPU from node {known[0]}, {_estimate(topology, known[0], card.node)}"
            )
    return Crossing(", ".join(parts), "; ".join(costs))


def check_place(
    topology: Topology, place: WorkerPinning, measure: Measure, *, allow: bool, who: str = "worker"
) -> str:
    """Describes a pinning that spans nodes, for status and log; empty if it does not.

    Raises PinningRefused for one that does, unless `allow`.
    """
    crossing = find_crossing(topology, place, measure)
    if crossing is None:
        return ""
    if not allow:
        raise PinningRefused(
            f"{who}: expected CPUs, memory and GPU on one NUMA node, got {crossing}; --allow-cross-node starts it all "
            "the same"
        )
    return str(crossing)


def _cost(topology: Topology, place: WorkerPinning, node: int, memory: int, measure: Measure) -> str:
    cpu = min(set(place.cpus) & set(_cpus(topology, node)))
    across, own = measure(cpu, memory), measure(cpu, node)
    if across and own:
        return f"measured, CPU {cpu} reads {across / 1e9:.1f} GB/s of it and {own / 1e9:.1f} GB/s of its own node's"
    if across:
        return f"measured, CPU {cpu} reads {across / 1e9:.1f} GB/s of it, {_estimate(topology, node, memory)}"
    return f"reads from node {node} are {_estimate(topology, node, memory)}"


def _estimate(topology: Topology, node: int, other: int) -> str:
    here = topology.node(node)
    distance = None if here is None else here.distance(other)
    if distance is None:
        return "of a cost that the kernel does not tell"
    times = distance / LOCAL_DISTANCE
    return f"estimated at {times:.1f} times the local latency (distance {distance}, local {LOCAL_DISTANCE})"


def _cpus(topology: Topology, node: int) -> tuple[int, ...]:
    found = topology.node(node)
    return () if found is None else found.cpus
