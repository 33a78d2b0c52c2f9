"""Read what this process may use of its machine: NUMA nodes with CPUs and memory, GPUs, and how much CPU time.

Sources are sysfs (devices/system/node, devices/system/cpu, bus/pci), the masks of the calling thread (man 5 proc,
Cpus_allowed_list and Mems_allowed_list) and its control group. The roots are arguments, so that tests read made-up
machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from colibri.cluster.machine.cgroup import cpu_quota, cpuset, memory_room, read
from colibri.cluster.machine.cpu_list import parse_cpu_list
from colibri.cluster.machine.pci import NVIDIA, display_controllers
from colibri.cluster.machine.pci import UNKNOWN_NODE as UNKNOWN_NODE
from colibri.errors import ColibriError

#: Distance of a node to itself (ACPI SLIT); others are relative to it: 21 means 2.1 times the latency.
LOCAL_DISTANCE = 10

_MEM_TOTAL = re.compile(r"MemTotal:\s+(\d+)\s+kB")


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the kernel's files are. Control groups are below `sysfs`/fs/cgroup."""

    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One node.

    id: UNKNOWN_NODE for CPUs to which the kernel gives none.
    cores: usable CPUs (online and allowed), hardware threads of a core together, ascending; empty for a memory-only
        node.
    memory_bytes: 0 if unknown or none.
    distances: to each node of the machine by id; 10 is local.
    has_memory: this process may take memory from it.
    """

    id: int
    cores: tuple[tuple[int, ...], ...]
    memory_bytes: int
    distances: tuple[tuple[int, int], ...]
    has_memory: bool = True

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(sorted(cpu for core in self.cores for cpu in core))

    def distance(self, other: int) -> int | None:
        """Returns the distance, or None if the kernel does not say."""
        return dict(self.distances).get(other)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. address: on the PCI bus, as CUDA spells it. node: UNKNOWN_NODE if the kernel does not say, or names a
    node that this machine does not have.
    """

    address: str
    node: int


@dataclass(frozen=True, slots=True)
class Topology:
    """The machine. Nodes are in ascending order of id.

    quota: CPUs' worth of time that the control group grants; None: no limit.
    memory_limit: bytes that it grants; None: no limit.
    """

    nodes: tuple[NumaNode, ...]
    quota: float | None
    gpus: tuple[Gpu, ...] = ()
    memory_limit: int | None = None

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(sorted(cpu for node in self.nodes for cpu in node.cpus))

    @property
    def cpu_budget(self) -> int:
        """How many threads can run at once, at least 1."""
        cpus = len(self.cpus)
        return max(1, cpus if self.quota is None else min(cpus, int(self.quota)))

    def node(self, node_id: int) -> NumaNode | None:
        return next((node for node in self.nodes if node.id == node_id), None)

    def nodes_of(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """Returns the ids of the nodes of these CPUs, ascending. CPUs that are not usable have none."""
        wanted = set(cpus)
        return tuple(node.id for node in self.nodes if wanted.intersection(node.cpus))


def discover(roots: Roots | None = None, affinity: Iterable[int] | None = None) -> Topology:
    """Returns the machine as the calling thread may use it.

    roots: None: this machine's.
    affinity: allowed CPU ids; None: the thread's own mask.

    Raises ColibriError if no CPU is both online and allowed, InvalidInput if a file is not a CPU list.
    """
    roots = Roots() if roots is None else roots
    sysfs = roots.sysfs
    homes = {node: _ids(sysfs / f"devices/system/node/node{node}/cpulist") for node in _node_ids(sysfs)}
    online = _told(sysfs / "devices/system/cpu/online")
    own = _mask(roots.proc, "Cpus_allowed_list") if affinity is None else frozenset(affinity)
    limits = [ids for ids in (own, online, cpuset(sysfs, roots.proc, "cpus")) if ids is not None]
    allowed = (
        set(frozenset.intersection(*limits)) if limits else {cpu for ids in homes.values() for cpu in ids}
    )
    if not allowed:
        raise ColibriError("no CPU is both online and allowed for this process")

    mems = _memory_nodes(roots, homes)
    nodes = [_node(sysfs, node, allowed.intersection(ids), node in mems) for node, ids in homes.items()]
    homeless = allowed.difference(*homes.values())
    if homeless:
        nodes.insert(0, NumaNode(UNKNOWN_NODE, _cores(sysfs, homeless), 0, ((UNKNOWN_NODE, LOCAL_DISTANCE),)))
    room = memory_room(sysfs, roots.proc)
    limit = None if room is None else room[0]
    return Topology(tuple(nodes), cpu_quota(sysfs, roots.proc), _gpus(sysfs, homes), limit)


def _node_ids(sysfs: Path) -> tuple[int, ...]:
    return _ids(sysfs / "devices/system/node/online")


def _memory_nodes(roots: Roots, nodes: Iterable[int]) -> frozenset[int]:
    """Returns the nodes with memory that the calling thread may use."""
    limits = (
        _told(roots.sysfs / "devices/system/node/has_memory"),
        _mask(roots.proc, "Mems_allowed_list"),
        cpuset(roots.sysfs, roots.proc, "mems"),
    )
    return frozenset(nodes).intersection(*(ids for ids in limits if ids is not None))


def _node(sysfs: Path, node_id: int, cpus: set[int], memory_allowed: bool) -> NumaNode:
    folder = sysfs / f"devices/system/node/node{node_id}"
    total = _MEM_TOTAL.search(read(folder / "meminfo"))
    size = int(total.group(1)) * 1024 if total else 0
    # A kernel that tells no size may still have memory there; one that says 0 has none.
    has_memory = memory_allowed and (total is None or size > 0)
    return NumaNode(node_id, _cores(sysfs, cpus), size, _distances(sysfs, folder, node_id), has_memory)


def _cores(sysfs: Path, cpus: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    left = set(cpus)
    cores = []
    for cpu in sorted(left):
        if cpu not in left:
            continue
        siblings = sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        core = ({cpu} | set(_ids(siblings))) & left
        left -= core
        cores.append(tuple(sorted(core)))
    return tuple(cores)


def _distances(sysfs: Path, folder: Path, node_id: int) -> tuple[tuple[int, int], ...]:
    values = read(folder / "distance").split()
    nodes = _node_ids(sysfs)
    if len(values) != len(nodes) or not all(value.isdecimal() for value in values):
        return ((node_id, LOCAL_DISTANCE),)
    return tuple(zip(nodes, map(int, values), strict=True))


def _gpus(sysfs: Path, nodes: Iterable[int]) -> tuple[Gpu, ...]:
    known = set(nodes)
    return tuple(
        Gpu(card.address, card.node if card.node in known else UNKNOWN_NODE)
        for card in display_controllers(sysfs)
        if card.vendor == NVIDIA
    )


def _mask(proc: Path, name: str) -> frozenset[int] | None:
    """Reads a line of the calling thread's status; None if the kernel does not say."""
    for line in read(proc / "thread-self/status").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return frozenset(parse_cpu_list(value, f"{proc}/thread-self/status: {name}"))
    return None


def _told(path: Path) -> frozenset[int] | None:
    return frozenset(_ids(path)) if path.is_file() else None


def _ids(path: Path) -> tuple[int, ...]:
    return parse_cpu_list(read(path), str(path))
