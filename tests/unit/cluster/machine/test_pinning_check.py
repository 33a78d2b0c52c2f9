"""Places that span NUMA nodes: found, named with their cost, refused; on made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.cluster.machine.pinning_check import check_place, find_crossing
from colibri.cluster.machine.pinning_plan import Wanted, WorkerPinning, plan_workers
from colibri.cluster.machine.topology import UNKNOWN_NODE, Topology
from colibri.errors import Code, PinningRefused
from tests.support.machine_trees import MachineTree, eight_nodes, two_sockets
from tests.support.topologies import machines

FAR = "estimated at 2.1 times the local latency (distance 21, local 10)"


def unmeasured(cpu: int, node: int) -> None:
    return None


def place(cpus: tuple[int, ...], node: int, gpu: str = "") -> WorkerPinning:
    return WorkerPinning(node, cpus, len(cpus), False, gpu)


@pytest.fixture
def two(tmp_path: Path) -> Topology:
    return two_sockets(tmp_path).discover()


def refusal(topology: Topology, where: WorkerPinning, measure: object = unmeasured) -> str:
    with pytest.raises(PinningRefused) as caught:
        check_place(topology, where, measure, allow=False)  # type: ignore[arg-type]
    assert caught.value.code is Code.FAILED_PRECONDITION
    assert not caught.value.retryable
    return caught.value.message


def test_all_on_one_node_is_fine(two: Topology) -> None:
    assert check_place(two, place((0, 1, 8), 0, "0000:65:00.0"), unmeasured, allow=False) == ""
    assert check_place(two, place((15,), 1), unmeasured, allow=False) == ""


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (
            place((4, 5), 0),
            f"CPUs 4-5 on node 1, memory on node 0: reads from node 1 are {FAR}",
        ),
        (
            place((3, 4, 12), 1),
            f"CPUs 3 on node 0, CPUs 4,12 on node 1, memory on node 1: reads from node 0 are {FAR}",
        ),
        (
            place((0,), 0, "0000:ca:00.0"),
            "CPUs 0 on node 0, memory on node 0, GPU 0000:ca:00.0 on node 1: copies to the GPU cross from node 0 to 1, "
            f"{FAR}",
        ),
        (
            place((0,), 1, "0000:ca:00.0"),
            "CPUs 0 on node 0, memory on node 1, GPU 0000:ca:00.0 on node 1: reads from node 0 are "
            f"{FAR}; its CPUs drive the GPU from node 0, {FAR}",
        ),
    ],
)
def test_what_lies_apart_is_named_with_its_estimated_cost(
    two: Topology, where: WorkerPinning, text: str
) -> None:
    assert refusal(two, where) == (
        f"worker: expected CPUs, memory and GPU on one NUMA node, got {text}; --allow-cross-node starts it all the same"
    )


def test_the_cost_is_measured_where_it_can_be(two: Topology) -> None:
    asked: list[tuple[int, int]] = []

    def measure(cpu: int, node: int) -> float:
        asked.append((cpu, node))
        return {0: 7.94e9, 1: 21.0e9}[node]

    text = refusal(two, place((12, 5), 0), measure)
    assert "measured, CPU 5 reads 7.9 GB/s of it and 21.0 GB/s of its own node's" in text
    assert asked == [(5, 0), (5, 1)]


def test_the_own_node_may_have_nothing_to_compare_with(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path).nodes("0-3", "4-7", memory_kb=(0, 4096))
    (where,) = plan_workers(tree.discover(), Wanted(1, numa_nodes=(0,)))
    text = refusal(tree.discover(), where, lambda cpu, node: 8e9 if node == 1 else None)
    assert (
        "CPUs 0-3 on node 0, memory on node 1: measured, CPU 0 reads 8.0 GB/s of it, estimated at 2.1 times"
        in text
    )


def test_the_distance_decides_the_estimate(tmp_path: Path) -> None:
    topology = eight_nodes(tmp_path).discover()
    assert "1.2 times the local latency (distance 12" in refusal(topology, place((0,), 3))
    assert "3.2 times the local latency (distance 32" in refusal(topology, place((0,), 7))


def test_a_distance_that_is_not_told(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path).nodes("0", "1", distances=("", ""))
    assert "reads from node 0 are of a cost that the kernel does not tell" in refusal(
        tree.discover(), place((0,), 1)
    )


def test_what_is_unknown_crosses_to_nowhere(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path).nodes("0-1", "2-3").gpu("0000:01:00.0", "-1")
    topology = tree.discover()
    assert find_crossing(topology, place((0, 1), 0, "0000:01:00.0"), unmeasured) is None
    assert find_crossing(topology, place((0, 3), UNKNOWN_NODE), unmeasured) is None
    text = refusal(topology, place((0,), 1, "0000:01:00.0"))
    assert "GPU 0000:01:00.0 on an unknown node" in text
    hidden = MachineTree(tmp_path / "hidden").online("0-3").discover()
    assert find_crossing(hidden, place((0, 3), UNKNOWN_NODE), unmeasured) is None


def test_what_is_allowed_is_told(two: Topology) -> None:
    told = check_place(two, place((4,), 0), unmeasured, allow=True)
    assert told.startswith("CPUs 4 on node 1, memory on node 0: reads from node 1 are estimated")


@given(st.data())
def test_automatic_places_never_cross_where_every_node_has_memory(data: st.DataObject) -> None:
    topology = data.draw(machines())
    count = data.draw(st.integers(1, 8))
    try:
        places = plan_workers(topology, Wanted(count))
    except PinningRefused:
        return
    usual = any(node.cpus and node.has_memory for node in topology.nodes)
    for each in places:
        crosses = find_crossing(topology, each, unmeasured)
        assert (crosses is None) or not usual
