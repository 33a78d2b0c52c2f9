"""What this process may use of its machine: NUMA nodes, their CPUs and memory, and how much CPU time.

Read from sysfs (devices/system/node, devices/system/cpu), the process's affinity mask and its cgroup's CPU
quota. The roots are arguments, so that tests read made-up machines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from colibri.cluster.cgroup import cpu_quota, read
from colibri.cluster.cpu_list import parse_cpu_list
from colibri.errors import ColibriError

#: Node of CPUs for which the kernel names none (no NUMA support, or hidden by a sandbox): no memory policy is
#: set there.
UNKNOWN_NODE = -1

_LOCAL_DISTANCE = 10
_MEM_TOTAL = re.compile(r"MemTotal:\s+(\d+)\s+kB")


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One memory node. `cores`: the usable CPUs (online and allowed), hardware threads of a core together,
    ascending; empty for a memory-only node. `memory_bytes`: 0 when unknown. `distances`: to each node of the
    machine by id, 10 is local.
    """

    id: int
    cores: tuple[tuple[int, ...], ...]
    memory_bytes: int
    distances: tuple[tuple[int, int], ...]

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(sorted(cpu for core in self.cores for cpu in core))


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes in ascending order of id. `quota`: CPUs' worth of time that the cgroup grants; None: no limit."""

    nodes: tuple[NumaNode, ...]
    quota: float | None

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(sorted(cpu for node in self.nodes for cpu in node.cpus))

    @property
    def cpu_budget(self) -> int:
        """How many threads can run at once, at least 1."""
        cpus = len(self.cpus)
        return max(1, cpus if self.quota is None else min(cpus, int(self.quota)))


def discover(
    sysfs: Path = Path("/sys"), proc: Path = Path("/proc"), affinity: Iterable[int] | None = None
) -> Topology:
    """The machine as this process may use it. `affinity`: allowed CPU ids, by default this process's own
    mask.

    Raises ColibriError where no CPU is both online and allowed, InvalidInput where a sysfs file is not a CPU
    list.
    """
    allowed = set(os.sched_getaffinity(0) if affinity is None else affinity)
    online_file = sysfs / "devices/system/cpu/online"
    if online_file.is_file():
        allowed &= set(parse_cpu_list(online_file.read_text(), str(online_file)))
    if not allowed:
        raise ColibriError("no CPU is both online and allowed for this process")

    nodes, homeless = [], set(allowed)
    for node_id in _online_nodes(sysfs):
        folder = sysfs / f"devices/system/node/node{node_id}"
        cpulist = folder / "cpulist"
        cpus = set(parse_cpu_list(read(cpulist), str(cpulist))) & homeless
        homeless -= cpus
        nodes.append(
            NumaNode(node_id, _cores(sysfs, cpus), _memory(folder), _distances(sysfs, folder, node_id))
        )
    if homeless:
        unknown = NumaNode(UNKNOWN_NODE, _cores(sysfs, homeless), 0, ((UNKNOWN_NODE, _LOCAL_DISTANCE),))
        nodes.insert(0, unknown)
    return Topology(tuple(nodes), cpu_quota(sysfs, proc))


def _online_nodes(sysfs: Path) -> tuple[int, ...]:
    online = sysfs / "devices/system/node/online"
    return parse_cpu_list(read(online), str(online))


def _cores(sysfs: Path, cpus: set[int]) -> tuple[tuple[int, ...], ...]:
    left, cores = set(cpus), []
    for cpu in sorted(cpus):
        if cpu not in left:
            continue
        siblings = sysfs / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        core = ({cpu} | set(parse_cpu_list(read(siblings), str(siblings)))) & left
        left -= core
        cores.append(tuple(sorted(core)))
    return tuple(cores)


def _memory(folder: Path) -> int:
    found = _MEM_TOTAL.search(read(folder / "meminfo"))
    return int(found.group(1)) * 1024 if found else 0


def _distances(sysfs: Path, folder: Path, node_id: int) -> tuple[tuple[int, int], ...]:
    values = read(folder / "distance").split()
    nodes = _online_nodes(sysfs)
    if len(values) != len(nodes) or not all(value.isdecimal() for value in values):
        return ((node_id, _LOCAL_DISTANCE),)
    return tuple(zip(nodes, map(int, values), strict=True))
