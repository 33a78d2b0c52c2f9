"""Decide which worker gets which CPUs and which node's memory. Pure arithmetic over a Topology; nothing is pinned
here.

Each worker lives on one NUMA node, with its memory, and beside its GPU if it has one. Workers go to nodes in
proportion to the nodes' free cores, and get whole cores that no other worker has. If cores do not suffice the plan
is refused, unless sharing was asked for. Then workers get disjoint hardware threads while those last, then CPUs in
turn, which is reported as oversubscribed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from colibri.cluster.machine.core_shares import Tenant, share_out, spare
from colibri.cluster.machine.cpu_list import format_cpu_list
from colibri.cluster.machine.topology import UNKNOWN_NODE, Gpu, NumaNode, Topology
from colibri.errors import ConfigError, InvalidInput, PinningRefused

MAX_WORKERS = 1 << 16
MAX_THREADS = 1024


@dataclass(frozen=True, slots=True)
class WorkerPinning:
    """The pinning of one worker.

    numa_node: node of its memory; -1: no policy, since the kernel names no node.
    threads: compute threads, at most len(cpus) unless asked for.
    oversubscribed: it shares a CPU, or its CPU time, with another worker.
    gpu: PCI address; empty: none.
    """

    numa_node: int
    cpus: tuple[int, ...]
    threads: int
    oversubscribed: bool
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a plan is asked for.

    workers: how many; None: one per (NUMA node, GPU).
    numa_nodes, cpu_threads: of each worker; None, and for workers beyond the ends: auto.
    gpus: each worker gets a GPU, except those of `without_gpu`, by number.
    cards: which GPU each worker gets, by order on the PCI bus; None: any.
    share: workers may share CPUs if cores do not suffice, and GPUs.
    taken: CPUs that other workers of this host have -> their process ids.
    """

    workers: int | None = None
    numa_nodes: tuple[int | None, ...] = ()
    cpu_threads: tuple[int | None, ...] = ()
    gpus: bool = False
    cards: tuple[int | None, ...] = ()
    without_gpu: frozenset[int] = frozenset()
    share: bool = False
    taken: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.workers is not None and not 0 <= self.workers <= MAX_WORKERS:
            raise InvalidInput("workers", f"0 .. {MAX_WORKERS}", self.workers)
        for threads in self.cpu_threads:
            if threads is not None and not 1 <= threads <= MAX_THREADS:
                raise InvalidInput("cpu_threads", f"1 .. {MAX_THREADS}", threads)


@dataclass(frozen=True, slots=True)
class PinningPlan:
    """The pinning of all workers, and of the process that starts them.

    coordinator_cpus, coordinator_threads: it shares the workers' CPUs, since it waits while they compute and they
        while it does.
    """

    workers: tuple[WorkerPinning, ...]
    coordinator_cpus: tuple[int, ...]
    coordinator_threads: int

    @property
    def oversubscribed(self) -> bool:
        return any(worker.oversubscribed for worker in self.workers)


def plan_pinning(topology: Topology, wanted: Wanted, threads: int | None = None) -> PinningPlan:
    """Plans workers and the process that starts them. Raises as plan_workers.

    threads: compute threads of each process for which `wanted` says nothing.
    """
    if threads is not None and not 1 <= threads <= MAX_THREADS:
        raise InvalidInput("threads", f"1 .. {MAX_THREADS}", threads)
    planned = plan_workers(topology, wanted)
    if threads is not None:
        asked = (*wanted.cpu_threads, *[None] * len(planned))
        planned = tuple(
            place if own else replace(place, threads=threads)
            for place, own in zip(planned, asked, strict=False)
        )
    cpus = tuple(sorted({cpu for place in planned for cpu in place.cpus})) or topology.cpus
    return PinningPlan(planned, cpus, threads or min(len(cpus), topology.cpu_budget))


def plan_workers(topology: Topology, wanted: Wanted) -> tuple[WorkerPinning, ...]:
    """Returns a pinning for each worker. No two share a core, whatever was asked, unless `wanted.share`.

    Raises ConfigError for a node or GPUs that this machine does not have, PinningRefused if cores do not suffice.
    """
    count = _default_count(topology, wanted) if wanted.workers is None else wanted.workers
    needed = sum(index not in wanted.without_gpu for index in range(count))
    able = wanted.gpus and (needed > 0 or not wanted.without_gpu)
    cards = _Cards(topology.gpus, wanted.share) if able else None
    if cards is not None and needed > len(topology.gpus) and not wanted.share:
        raise ConfigError("--workers", f"at most {len(topology.gpus)}, one for each GPU", needed)
    asked = list(zip_longest(range(count), wanted.numa_nodes[:count], wanted.cpu_threads[:count]))
    gpus: dict[int, Gpu] = {}
    if cards is not None:
        named = dict(enumerate(wanted.cards[:count]))
        gpus = {index: cards.named(number) for index, number in named.items() if number is not None}
        # Those who named a node choose first.
        for index, node, _ in sorted(asked, key=lambda item: item[1] is None):
            if index not in gpus and index not in wanted.without_gpu:
                gpus[index] = cards.take(node)
    homes = _Homes(topology, wanted.taken)
    tenants: dict[int, tuple[NumaNode, Tenant]] = {}
    # Those who may live anywhere go where the others leave room.
    for index, node_id, threads in sorted(
        asked, key=lambda item: (item[1] is None, item[2] is None, item[0])
    ):
        card = gpus.get(index)
        if node_id is None and card is not None and topology.node(card.node) is not None:
            node_id = card.node
        node = homes.any(threads) if node_id is None else homes.of(node_id, threads)
        tenants[index] = (node, Tenant(index, threads))

    places: list[WorkerPinning | None] = [None] * count
    starved = count > topology.cpu_budget
    for node in topology.nodes:
        here = [tenants[index][1] for index in range(count) if tenants[index][0] is node]
        if not here:
            continue
        shares = share_out(node.cores, here, frozenset(wanted.taken), wanted.share)
        if shares is None:
            raise PinningRefused(_too_few(topology, node, here, count, wanted.taken))
        for tenant, share in zip(here, shares, strict=True):
            auto = max(1, len(share.cpus) * topology.cpu_budget // len(topology.cpus))
            card = gpus.get(tenant.worker)
            places[tenant.worker] = WorkerPinning(
                _memory_node(topology, node, asked[tenant.worker][1]),
                share.cpus,
                tenant.threads or auto,
                share.shared or starved,
                "" if card is None else card.address,
            )
    return tuple(place for place in places if place is not None)


def plan_joining(
    topology: Topology, wanted: Wanted, present: Sequence[WorkerPinning]
) -> tuple[WorkerPinning, ...]:
    """Returns pinnings for `wanted.workers` workers that join others, whose pinnings stay. Raises as plan_workers.

    With `wanted.share` and without free cores, the new workers are oversubscribed: they get those pinnings, of a
    plan for all workers, that share the fewest CPUs.
    """
    if not any(number is not None for number in wanted.cards):  # else numbers are those of all cards
        cards = {place.gpu for place in present}
        left_over = replace(topology, gpus=tuple(gpu for gpu in topology.gpus if gpu.address not in cards))
    else:
        left_over = topology
    pids = {cpu: 0 for place in present for cpu in place.cpus} | dict(wanted.taken)
    count = wanted.workers or 0
    needed = (count - len(wanted.without_gpu)) if wanted.gpus else 0
    lacks_gpus = needed > len(left_over.gpus)
    if lacks_gpus and not wanted.share:
        there = sum(bool(place.gpu) for place in present)
        raise ConfigError("--workers", f"at most {len(topology.gpus)}, one for each GPU", there + needed)
    try:
        if not lacks_gpus:
            return plan_workers(left_over, replace(wanted, taken=pids, share=False))
    except PinningRefused:
        if not wanted.share:
            raise
    before: tuple[None, ...] = (None,) * len(present)
    left = list(
        plan_workers(
            topology,
            replace(
                wanted,
                workers=len(present) + count,
                numa_nodes=(*before, *wanted.numa_nodes),
                cpu_threads=(*before, *wanted.cpu_threads),
                cards=(*before, *wanted.cards),
                without_gpu=frozenset(
                    [index for index, place in enumerate(present) if not place.gpu]
                    + [len(present) + index for index in wanted.without_gpu]
                ),
            ),
        )
    )
    if wanted.gpus or any(asked is not None for asked in (*wanted.numa_nodes, *wanted.cpu_threads)):
        left = left[len(present) :]  # their own: no other's would be what they asked for
    used = Counter(cpu for place in present for cpu in place.cpus)
    chosen = []
    for _ in range(count):
        best = min(left, key=lambda place: sum(used[cpu] for cpu in place.cpus) / len(place.cpus))
        left.remove(best)
        shared = best.oversubscribed or any(used[cpu] for cpu in best.cpus)
        chosen.append(replace(best, oversubscribed=shared))
        used.update(best.cpus)
    return tuple(chosen)


class _Homes:
    """Gives each worker its node: always the one that leaves its workers the most free cores each, ties to the lower
    id.

    Nodes without memory are used only if there are no others.
    """

    def __init__(self, topology: Topology, taken: Mapping[int, int]) -> None:
        self._topology = topology
        self._able = [node for node in topology.nodes if node.cpus]
        self._left = {node.id: len(spare(node.cores, frozenset(taken))) for node in self._able}
        self._load = dict.fromkeys(self._left, 0)
        self._usual = [node for node in self._able if node.has_memory] or self._able

    def any(self, threads: int | None) -> NumaNode:
        able = [
            node
            for node in self._usual
            if self._need(node, threads) <= self._left[node.id] - self._load[node.id]
        ]
        best = max(
            able or self._usual,
            key=lambda node: (self._left[node.id] / (self._load[node.id] + 1), -node.id),
        )
        return self._settle(best, threads)

    def of(self, node_id: int, threads: int | None) -> NumaNode:
        """Returns the node itself, or the nearest one with CPUs."""
        node = self._topology.node(node_id)
        if node is None:
            raise no_such_node(self._topology, node_id)
        return self._settle(nearest(node, self._able), threads)

    def _settle(self, node: NumaNode, threads: int | None) -> NumaNode:
        if threads is None:
            self._load[node.id] += 1
        else:  # what it takes is known
            self._left[node.id] = max(0, self._left[node.id] - self._need(node, threads))
        return node

    def _need(self, node: NumaNode, threads: int | None) -> int:
        return 1 if threads is None else -(-threads // max(map(len, node.cores)))


class _Cards:
    """Gives each worker its GPU: the one it named, one of its node if it asked for a node, else the next; again from
    the first once all are given.
    """

    def __init__(self, gpus: Sequence[Gpu], share: bool) -> None:
        if not gpus:
            raise ConfigError("--device", "an NVIDIA GPU on the PCI bus", "none")
        self._all = list(gpus)
        self._left = list(gpus)
        self._share = share

    def named(self, number: int) -> Gpu:
        if number >= len(self._all):
            raise ConfigError(
                "--device", f"cuda:0 .. cuda:{len(self._all) - 1} ({len(self._all)} here)", f"cuda:{number}"
            )
        card = self._all[number]
        if card in self._left:
            self._left.remove(card)
        elif not self._share:
            raise ConfigError(
                "--device", "a GPU of its own for each worker, or --share-cpus", f"cuda:{number} twice"
            )
        return card

    def take(self, node: int | None) -> Gpu:
        self._left = self._left or list(self._all)
        # One of that node, else one that may be, else the next; min keeps the order of addresses.
        card = (
            self._left[0]
            if node is None
            else min(self._left, key=lambda card: (card.node != node, card.node != UNKNOWN_NODE))
        )
        self._left.remove(card)
        return card


def no_such_node(topology: Topology, node_id: int) -> ConfigError:
    known = format_cpu_list(node.id for node in topology.nodes if node.id != UNKNOWN_NODE)
    return ConfigError("--numa-node", f"one of this machine's nodes ({known or 'none is told'})", node_id)


def nearest(node: NumaNode, others: Sequence[NumaNode]) -> NumaNode:
    """Returns the nearest of `others`: `node` itself first, nodes of unknown distance last, ties to the lower id."""
    far = 1 << 16
    return min(others, key=lambda other: (other is not node, node.distance(other.id) or far, other.id))


def _memory_node(topology: Topology, home: NumaNode, asked: int | None) -> int:
    """Returns the node asked for, or the CPUs' own; if that has no memory, the nearest that has."""
    node = home if asked is None else topology.node(asked) or home
    with_memory = [other for other in topology.nodes if other.has_memory]
    return nearest(node, with_memory).id if with_memory else node.id


def _default_count(topology: Topology, wanted: Wanted) -> int:
    homes = [node.id for node in topology.nodes if node.cpus and node.has_memory]
    if not wanted.gpus:
        return max(1, len(homes))
    return len(topology.gpus)


def _too_few(
    topology: Topology, node: NumaNode, tenants: Sequence[Tenant], count: int, taken: Mapping[int, int]
) -> str:
    cores = len(node.cores)
    free = len(spare(node.cores, frozenset(taken)))
    asked = [tenant.threads for tenant in tenants if tenant.threads is not None]
    need = f"{len(tenants)} of {count} workers" if len(tenants) < count else _count(count, "worker")
    threads = f" ({sum(asked)} CPU threads asked for)" if asked else ""
    where = f"node {node.id}" if node.id >= 0 else "this machine"
    busy = sorted({pid for cpu, pid in taken.items() if cpu in node.cpus and pid})
    others = f" (process {', '.join(map(str, busy))})" if busy else ""
    return (
        f"CPUs: expected a core of their own for {need}{threads} on {where}, got {_count(free, 'free core')} of "
        f"{cores}: CPUs {format_cpu_list(node.cpus)}"
        + (
            f", of which workers have {format_cpu_list(set(taken) & set(node.cpus))}{others}"
            if free < cores
            else ""
        )
        + "; fewer workers, fewer --cpu-threads, or --share-cpus, with which workers take turns"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
