"""Topology discovery on made-up sysfs trees: nothing here depends on the machine that runs the test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from colibri.cluster.machine.pci import display_controllers
from colibri.cluster.machine.topology import UNKNOWN_NODE, Gpu, discover
from colibri.errors import ColibriError, InvalidInput
from tests.support.machine_trees import MachineTree, eight_nodes, two_sockets


@pytest.fixture
def machine(tmp_path: Path) -> MachineTree:
    return MachineTree(tmp_path)


def test_one_node(machine: MachineTree) -> None:
    topology = machine.nodes("0-1", memory_kb=2048).discover()
    assert [node.id for node in topology.nodes] == [0]
    assert topology.cpus == (0, 1)
    assert topology.nodes[0].memory_bytes == 2048 * 1024
    assert topology.nodes[0].distances == ((0, 10),)
    assert topology.nodes[0].has_memory
    assert (topology.quota, topology.gpus, topology.memory_limit) == (None, (), None)
    assert topology.cpu_budget == 2


def test_two_nodes_with_hardware_threads_and_gpus(tmp_path: Path) -> None:
    topology = two_sockets(tmp_path).discover()
    assert topology.nodes[0].cores == ((0, 8), (1, 9), (2, 10), (3, 11))
    assert topology.nodes[1].cores == ((4, 12), (5, 13), (6, 14), (7, 15))
    assert topology.nodes[1].distances == ((0, 21), (1, 10))
    assert topology.nodes[1].distance(0) == 21
    assert topology.nodes[1].distance(5) is None
    assert [gpu.node for gpu in topology.gpus] == [0, 0, 1, 1]
    assert topology.nodes_of((1, 9)) == (0,)
    assert topology.nodes_of((1, 15, 99)) == (0, 1)


def test_eight_nodes(tmp_path: Path) -> None:
    topology = eight_nodes(tmp_path).discover()
    assert [len(node.cpus) for node in topology.nodes] == [16] * 8
    assert topology.nodes[7].cpus == tuple(range(112, 128))
    assert [topology.nodes[5].distance(other) for other in (0, 4, 5)] == [32, 12, 10]


def test_memory_only_node_has_no_cpus(machine: MachineTree) -> None:
    topology = machine.nodes("0-3", "").discover()
    assert topology.nodes[1].cpus == ()
    assert topology.nodes[1].has_memory
    assert topology.cpus == (0, 1, 2, 3)


def test_cpu_only_node_has_no_memory(machine: MachineTree) -> None:
    topology = machine.nodes("0-3", "4-7", memory_kb=(0, 4096)).discover()
    assert [(node.has_memory, node.memory_bytes) for node in topology.nodes] == [
        (False, 0),
        (True, 4096 * 1024),
    ]


def test_node_ids_with_gaps(machine: MachineTree) -> None:
    topology = machine.nodes("0-1", "2-3", ids=(0, 8), distances=("10 40", "40 10")).discover()
    assert [node.id for node in topology.nodes] == [0, 8]
    assert topology.nodes[1].distances == ((0, 40), (8, 10))


def test_a_size_that_is_not_told_is_no_lack_of_memory(machine: MachineTree) -> None:
    machine.nodes("0-1").write("devices/system/node/node0/meminfo", "withheld")
    node = machine.discover().nodes[0]
    assert (node.memory_bytes, node.has_memory) == (0, True)


def test_a_distance_row_of_another_length_is_not_believed(machine: MachineTree) -> None:
    topology = machine.nodes("0-1", "2-3", distances=("10", "x 10")).discover()
    assert [node.distances for node in topology.nodes] == [((0, 10),), ((1, 10),)]


def test_offline_cpus_are_left_out(machine: MachineTree) -> None:
    machine.nodes("0-3").online("0,2-3").siblings((0, 1), (2, 3))
    assert machine.discover().nodes[0].cores == ((0,), (2, 3))


def test_the_threads_mask_limits(machine: MachineTree) -> None:
    topology = machine.nodes("0-3", "4-7").allowed("3-4", "1").discover()
    assert [node.cpus for node in topology.nodes] == [(3,), (4,)]
    assert [node.has_memory for node in topology.nodes] == [False, True]


def test_an_affinity_that_is_handed_in_stands_for_the_mask(machine: MachineTree) -> None:
    topology = machine.nodes("0-3", "4-7").allowed("0", "0-1").discover({3, 4, 99})
    assert [node.cpus for node in topology.nodes] == [(3,), (4,)]


def test_nothing_usable_is_an_error(machine: MachineTree) -> None:
    machine.nodes("0-1")
    with pytest.raises(ColibriError, match="no CPU"):
        machine.discover({9})


@pytest.mark.parametrize(
    ("path", "text", "named"),
    [
        ("devices/system/node/node0/cpulist", "zero", "node0/cpulist"),
        ("devices/system/cpu/online", "3-1", "cpu/online"),
        ("devices/system/node/has_memory", "0-", "node/has_memory"),
        ("thread-self/status", "Cpus_allowed_list:\tall", "Cpus_allowed_list"),
    ],
)
def test_damaged_files_are_named(machine: MachineTree, path: str, text: str, named: str) -> None:
    machine.nodes("0-1").write(path, text)
    with pytest.raises(InvalidInput, match=named):
        machine.discover()


def test_no_numa_support_puts_all_cpus_on_the_unknown_node(machine: MachineTree) -> None:
    topology = machine.online("0-3").discover()
    assert [(node.id, node.cpus) for node in topology.nodes] == [(UNKNOWN_NODE, (0, 1, 2, 3))]


def test_cpus_of_no_node_are_kept_apart(machine: MachineTree) -> None:
    topology = machine.nodes("0-1").online("0-3").discover()
    assert [(node.id, node.cpus) for node in topology.nodes] == [(UNKNOWN_NODE, (2, 3)), (0, (0, 1))]


def test_gpus_are_nvidias_display_controllers(machine: MachineTree) -> None:
    machine.nodes("0-1", "2-3").gpu("0000:CA:00.0", "1").gpu("0000:17:00.0", "0")
    machine.pci("0000:17:00.1", "0x040300", "0x10de", "0")  # its audio
    machine.pci("0000:05:00.0", "0x030000", "0x1a03", "0")  # the board's own
    machine.pci("0000:01:00.0", "0x060000", "0x8086", "-1").pci("0000:02:00.0", "junk", "junk", None)
    assert machine.discover().gpus == (Gpu("0000:17:00.0", 0), Gpu("0000:ca:00.0", 1))
    assert [card.vendor for card in display_controllers(machine.roots.sysfs)] == [0x1A03, 0x10DE, 0x10DE]


@pytest.mark.parametrize("node", ["-1", None, "7", "junk", ""])
def test_a_gpu_whose_node_is_not_told_or_not_there(machine: MachineTree, node: str | None) -> None:
    assert machine.nodes("0-1", "2-3").gpu("0000:17:00.0", node).discover().gpus == (
        Gpu("0000:17:00.0", UNKNOWN_NODE),
    )


def test_cgroup_v2_takes_the_tightest_limit_on_the_way_up(machine: MachineTree) -> None:
    machine.nodes("0-7").write("self/cgroup", "0::/pod/app")
    machine.write("fs/cgroup/pod/app/cpu.max", "max 100000").write("fs/cgroup/pod/cpu.max", "250000 100000")
    machine.write("fs/cgroup/pod/memory.max", "1000000").write("fs/cgroup/pod/memory.current", "5")
    topology = machine.discover()
    assert topology.quota == 2.5
    assert topology.cpu_budget == 2
    assert topology.memory_limit == 1000000


def test_cgroup_v2_cpuset(machine: MachineTree) -> None:
    machine.nodes("0-3", "4-7").write("self/cgroup", "0::/pod/app")
    machine.write("fs/cgroup/pod/app/cpuset.cpus.effective", "")  # the controller is not on below the pod
    machine.write("fs/cgroup/pod/cpuset.cpus.effective", "2-5").write(
        "fs/cgroup/pod/cpuset.mems.effective", "1"
    )
    machine.write("fs/cgroup/cpuset.cpus.effective", "0-7")
    topology = machine.discover()
    assert [node.cpus for node in topology.nodes] == [(2, 3), (4, 5)]
    assert [node.has_memory for node in topology.nodes] == [False, True]


def test_cgroup_v2_seen_from_inside_a_container(machine: MachineTree) -> None:
    machine.nodes("0-7").write("self/cgroup", "0::/../not/mounted/here")
    machine.write("fs/cgroup/cpu.max", "50000 100000").write("fs/cgroup/cpuset.cpus.effective", "1,3")
    topology = machine.discover()
    assert topology.quota == 0.5
    assert topology.cpu_budget == 1
    assert topology.cpus == (1, 3)


@pytest.mark.parametrize(("quota", "expected"), [("300000", 3.0), ("-1", None)])
def test_cgroup_v1(machine: MachineTree, quota: str, expected: float | None) -> None:
    machine.nodes("0-7")
    machine.write("self/cgroup", "5:cpuset:/job\n4:memory:/other\n3:cpu,cpuacct:/job\n0::/")
    machine.write("fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", quota)
    machine.write("fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000")
    machine.write("fs/cgroup/cpuset/job/cpuset.cpus", "4-7").write("fs/cgroup/cpuset/cpuset.cpus", "0-7")
    machine.write("fs/cgroup/memory/other/memory.limit_in_bytes", "4096")
    topology = machine.discover()
    assert (topology.quota, topology.cpus, topology.memory_limit) == (expected, (4, 5, 6, 7), 4096)


def test_cgroup_v1_effective_cpus_win(machine: MachineTree) -> None:
    machine.nodes("0-3").write("self/cgroup", "5:cpuset:/job")
    machine.write("fs/cgroup/cpuset/job/cpuset.cpus", "0-3")
    machine.write("fs/cgroup/cpuset/job/cpuset.effective_cpus", "1-2")
    assert machine.discover().cpus == (1, 2)


def test_this_machine() -> None:
    topology = discover()
    assert set(topology.cpus) == os.sched_getaffinity(0)
    assert any(node.has_memory for node in topology.nodes)
