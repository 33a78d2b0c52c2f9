"""Topology discovery on made-up sysfs trees: nothing here depends on the machine that runs the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri.cluster.cpu_list import format_cpu_list
from colibri.cluster.topology import UNKNOWN_NODE, Topology, discover
from colibri.errors import ColibriError, InvalidInput


class Machine:
    """Writes sysfs and proc files the way the kernel does."""

    def __init__(self, root: Path) -> None:
        self.sysfs, self.proc = root / "sys", root / "proc"

    def write(self, path: str, text: str) -> Machine:
        file = (self.proc if path.startswith("self/") else self.sysfs) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        return self

    def nodes(self, *cpulists: str, memory_kb: int = 1024) -> Machine:
        self.write("devices/system/node/online", format_cpu_list(range(len(cpulists))))
        for node, cpulist in enumerate(cpulists):
            folder = f"devices/system/node/node{node}"
            self.write(f"{folder}/cpulist", cpulist)
            self.write(
                f"{folder}/distance", " ".join("10" if n == node else "21" for n in range(len(cpulists)))
            )
            self.write(
                f"{folder}/meminfo", f"Node {node} MemTotal:       {memory_kb} kB\nNode {node} MemFree: 1 kB"
            )
        return self

    def siblings(self, *cores: tuple[int, ...]) -> Machine:
        for core in cores:
            for cpu in core:
                path = f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
                self.write(path, format_cpu_list(core))
        return self

    def discover(self, affinity: range | set[int]) -> Topology:
        return discover(self.sysfs, self.proc, affinity)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_one_node(machine: Machine) -> None:
    machine.write("devices/system/cpu/online", "0-1").nodes("0-1", memory_kb=2048)
    topology = machine.discover(range(2))
    assert [node.id for node in topology.nodes] == [0]
    assert topology.cpus == (0, 1)
    assert topology.nodes[0].memory_bytes == 2048 * 1024
    assert topology.nodes[0].distances == ((0, 10),)
    assert topology.quota is None
    assert topology.cpu_budget == 2


def test_two_nodes_with_hardware_threads(machine: Machine) -> None:
    machine.write("devices/system/cpu/online", "0-7").nodes("0-1,4-5", "2-3,6-7").siblings(
        (0, 4), (1, 5), (2, 6), (3, 7)
    )
    topology = machine.discover(range(8))
    assert topology.nodes[0].cores == ((0, 4), (1, 5))
    assert topology.nodes[1].cores == ((2, 6), (3, 7))
    assert topology.nodes[1].distances == ((0, 21), (1, 10))


def test_eight_nodes(machine: Machine) -> None:
    machine.write("devices/system/cpu/online", "0-127").nodes(*(f"{16 * n}-{16 * n + 15}" for n in range(8)))
    topology = machine.discover(range(128))
    assert [len(node.cpus) for node in topology.nodes] == [16] * 8
    assert topology.nodes[7].cpus == tuple(range(112, 128))


def test_memory_only_node_has_no_cpus(machine: Machine) -> None:
    machine.write("devices/system/cpu/online", "0-3").nodes("0-3", "")
    topology = machine.discover(range(4))
    assert topology.nodes[1].cpus == ()
    assert topology.cpus == (0, 1, 2, 3)


def test_offline_cpus_are_left_out(machine: Machine) -> None:
    machine.write("devices/system/cpu/online", "0,2-3").nodes("0-3").siblings((0, 1), (2, 3))
    assert machine.discover(range(4)).nodes[0].cores == ((0,), (2, 3))


def test_affinity_limits(machine: Machine) -> None:
    machine.write("devices/system/cpu/online", "0-7").nodes("0-3", "4-7")
    topology = machine.discover({3, 4})
    assert [node.cpus for node in topology.nodes] == [(3,), (4,)]


def test_nothing_usable_is_an_error(machine: Machine) -> None:
    machine.write("devices/system/cpu/online", "0-1").nodes("0-1")
    with pytest.raises(ColibriError, match="no CPU"):
        machine.discover({9})


def test_damaged_file_is_named(machine: Machine) -> None:
    machine.write("devices/system/cpu/online", "0-1").nodes("zero")
    with pytest.raises(InvalidInput, match="node0/cpulist"):
        machine.discover(range(2))


def test_no_numa_support_puts_all_cpus_on_the_unknown_node(machine: Machine) -> None:
    topology = machine.write("devices/system/cpu/online", "0-3").discover(range(4))
    assert [(node.id, node.cpus) for node in topology.nodes] == [(UNKNOWN_NODE, (0, 1, 2, 3))]


def test_cgroup_v2_takes_the_tightest_limit_on_the_way_up(machine: Machine) -> None:
    machine.write("devices/system/cpu/online", "0-7").nodes("0-7").write("self/cgroup", "0::/pod/app")
    machine.write("fs/cgroup/pod/app/cpu.max", "max 100000").write("fs/cgroup/pod/cpu.max", "250000 100000")
    topology = machine.discover(range(8))
    assert topology.quota == 2.5
    assert topology.cpu_budget == 2


def test_cgroup_v2_seen_from_inside_a_container(machine: Machine) -> None:
    machine.write("devices/system/cpu/online", "0-7").nodes("0-7").write(
        "self/cgroup", "0::/../not/mounted/here"
    )
    machine.write("fs/cgroup/cpu.max", "50000 100000")
    topology = machine.discover(range(8))
    assert topology.quota == 0.5
    assert topology.cpu_budget == 1


@pytest.mark.parametrize(("quota", "expected"), [("300000", 3.0), ("-1", None)])
def test_cgroup_v1(machine: Machine, quota: str, expected: float | None) -> None:
    machine.write("devices/system/cpu/online", "0-7").nodes("0-7")
    machine.write("self/cgroup", "4:memory:/other\n3:cpu,cpuacct:/job\n0::/")
    machine.write("fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", quota)
    machine.write("fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000")
    assert machine.discover(range(8)).quota == expected


def test_this_machine() -> None:
    import os

    assert set(discover().cpus) <= os.sched_getaffinity(0)
