"""Who gets which cores: on made-up machines, examples first, then properties over any machine and any wish."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.cluster.machine.pinning_plan import (
    Wanted,
    WorkerPinning,
    plan_joining,
    plan_pinning,
    plan_workers,
)
from colibri.cluster.machine.topology import UNKNOWN_NODE, NumaNode, Topology
from colibri.errors import ConfigError, InvalidInput, PinningRefused
from tests.support.machine_trees import MachineTree, eight_nodes, two_sockets
from tests.support.topologies import machines


def made(*nodes: list[tuple[int, ...]], quota: float | None = None) -> Topology:
    return Topology(tuple(NumaNode(i, tuple(cores), 0, ((i, 10),)) for i, cores in enumerate(nodes)), quota)


def single(first: int, count: int) -> list[tuple[int, ...]]:
    return [(cpu,) for cpu in range(first, first + count)]


def cpus_of(places: tuple[WorkerPinning, ...]) -> list[tuple[int, ...]]:
    return [place.cpus for place in places]


# What a deployment gets


def test_two_workers_on_two_cpus_are_disjoint() -> None:
    plan = plan_pinning(made(single(0, 2)), Wanted(2))
    assert cpus_of(plan.workers) == [(0,), (1,)]
    assert not plan.oversubscribed
    assert plan.coordinator_cpus == (0, 1)
    assert plan.coordinator_threads == 2


def test_threads_asked_for_win() -> None:
    plan = plan_pinning(made(single(0, 4)), Wanted(2), threads=3)
    assert [place.threads for place in plan.workers] == [3, 3]
    assert plan.coordinator_threads == 3
    plan = plan_pinning(made(single(0, 4)), Wanted(2, cpu_threads=(1, None)), threads=2)
    assert [place.threads for place in plan.workers] == [1, 2]


def test_no_workers_leaves_all_cpus_to_the_coordinator() -> None:
    plan = plan_pinning(made(single(0, 4)), Wanted(0))
    assert plan.workers == ()
    assert plan.coordinator_cpus == (0, 1, 2, 3)


def test_counts_out_of_range() -> None:
    with pytest.raises(InvalidInput, match="workers"):
        Wanted(-1)
    with pytest.raises(InvalidInput, match="cpu_threads"):
        Wanted(1, cpu_threads=(0,))
    for threads in (0, 1025):
        with pytest.raises(InvalidInput, match="threads"):
            plan_pinning(made(single(0, 2)), Wanted(1), threads)


# Nodes and cores


def test_one_worker_per_node_unless_told(tmp_path: Path) -> None:
    places = plan_workers(eight_nodes(tmp_path).discover(), Wanted())
    assert [(place.numa_node, len(place.cpus), place.threads) for place in places] == [
        (node, 16, 16) for node in range(8)
    ]


def test_one_worker_per_gpu_beside_it(tmp_path: Path) -> None:
    places = plan_workers(two_sockets(tmp_path).discover(), Wanted(gpus=True))
    assert [(place.numa_node, place.gpu, place.cpus) for place in places] == [
        (0, "0000:17:00.0", (0, 1, 8, 9)),
        (0, "0000:65:00.0", (2, 3, 10, 11)),
        (1, "0000:ca:00.0", (4, 5, 12, 13)),
        (1, "0000:e3:00.0", (6, 7, 14, 15)),
    ]


def test_a_node_that_is_asked_for_brings_its_own_gpu(tmp_path: Path) -> None:
    places = plan_workers(two_sockets(tmp_path).discover(), Wanted(2, numa_nodes=(1, None), gpus=True))
    assert [(place.numa_node, place.gpu) for place in places] == [(1, "0000:ca:00.0"), (0, "0000:17:00.0")]


def test_gpus_of_unknown_nodes_are_spread_like_workers_without(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path).nodes("0-3", "4-7").gpu("0000:01:00.0", "-1").gpu("0000:02:00.0", None)
    places = plan_workers(tree.discover(), Wanted(gpus=True))
    assert [(place.numa_node, place.gpu) for place in places] == [(0, "0000:01:00.0"), (1, "0000:02:00.0")]


def test_who_names_a_node_chooses_its_gpu_first(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path).nodes("0-3", "4-7")
    tree.gpu("0000:01:00.0", "-1").gpu("0000:02:00.0", "1").gpu("0000:03:00.0", "0")
    places = plan_workers(tree.discover(), Wanted(3, numa_nodes=(0, None, 0), gpus=True))
    found = [(place.numa_node, place.gpu) for place in places]
    assert found == [(0, "0000:03:00.0"), (1, "0000:02:00.0"), (0, "0000:01:00.0")]


def test_more_workers_than_gpus_are_refused_or_share_them(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path).nodes("0-3").gpu("0000:01:00.0", "0")
    with pytest.raises(ConfigError, match="workers: expected at most 1, one for each GPU, got 2"):
        plan_workers(tree.discover(), Wanted(2, gpus=True))
    places = plan_workers(tree.discover(), Wanted(2, gpus=True, share=True))
    assert [place.gpu for place in places] == ["0000:01:00.0"] * 2
    with pytest.raises(ConfigError, match="--device: expected an NVIDIA GPU on the PCI bus, got none"):
        plan_workers(made(single(0, 4)), Wanted(1, gpus=True))


def test_workers_follow_the_cores_of_unequal_nodes() -> None:
    places = plan_workers(made(single(0, 12), single(12, 4), []), Wanted(4))
    assert [place.numa_node for place in places] == [0, 0, 0, 1]
    assert {len(place.cpus) for place in places} == {4}


def test_cores_stay_whole() -> None:
    topology = made([(0, 4), (1, 5), (2, 6), (3, 7)])
    assert cpus_of(plan_workers(topology, Wanted(2))) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert cpus_of(plan_workers(topology, Wanted(2, cpu_threads=(1, 3)))) == [(0, 4), (1, 2, 5, 6)]


def test_threads_of_each_worker() -> None:
    places = plan_workers(made(single(0, 8)), Wanted(3, cpu_threads=(1, None, 4)))
    assert [(place.cpus, place.threads) for place in places] == [((0,), 1), ((5, 6, 7), 3), ((1, 2, 3, 4), 4)]


def test_nodes_of_each_worker() -> None:
    topology = made(single(0, 4), single(4, 4))
    assert [place.numa_node for place in plan_workers(topology, Wanted(3, numa_nodes=(1, 1, None)))] == [
        1,
        1,
        0,
    ]
    with pytest.raises(
        ConfigError, match=r"--numa-node: expected one of this machine's nodes \(0-1\), got 2"
    ):
        plan_workers(topology, Wanted(1, numa_nodes=(2,)))


def test_who_wants_many_threads_goes_where_they_are() -> None:
    places = plan_workers(made(single(0, 2), single(2, 8)), Wanted(2, cpu_threads=(None, 8)))
    assert [(place.numa_node, len(place.cpus)) for place in places] == [(0, 2), (1, 8)]


def test_cpu_only_nodes_are_passed_over_while_there_are_others(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path).nodes("0-3", "4-7", memory_kb=(0, 4096))
    assert [place.numa_node for place in plan_workers(tree.discover(), Wanted(2))] == [1, 1]
    (there,) = plan_workers(tree.discover(), Wanted(1, numa_nodes=(0,)))
    assert (there.cpus, there.numa_node) == ((0, 1, 2, 3), 1)  # pinning_check refuses it


def test_a_memory_only_node_takes_the_nearest_cpus(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path).nodes("0-3", "4-7", "", distances=("10 21 40", "21 10 14", "40 14 10"))
    (there,) = plan_workers(tree.discover(), Wanted(1, numa_nodes=(2,)))
    assert (there.cpus, there.numa_node) == ((4, 5, 6, 7), 2)
    assert {place.numa_node for place in plan_workers(tree.discover(), Wanted(4))} == {0, 1}


def test_cpus_of_no_known_node_get_no_memory_policy(tmp_path: Path) -> None:
    (place,) = plan_workers(MachineTree(tmp_path).online("0-3").discover(), Wanted(1))
    assert (place.numa_node, place.cpus) == (UNKNOWN_NODE, (0, 1, 2, 3))


def test_a_quota_limits_threads_not_places() -> None:
    plan = plan_pinning(made(single(0, 8), quota=4), Wanted(2))
    found = [(len(place.cpus), place.threads, place.oversubscribed) for place in plan.workers]
    assert found == [(4, 2, False)] * 2
    assert plan.coordinator_threads == 4
    assert plan_pinning(made(single(0, 8), quota=1.5), Wanted(2)).oversubscribed


# Too few cores


@pytest.mark.parametrize(
    ("topology", "wanted", "text"),
    [
        (
            made(single(0, 2)),
            Wanted(4),
            "CPUs: expected a core of their own for 4 workers on node 0, got 2 free cores of 2: CPUs 0-1; fewer "
            "workers, fewer --cpu-threads, or --share-cpus, with which workers take turns",
        ),
        (
            made([(0, 1)]),
            Wanted(2),
            "CPUs: expected a core of their own for 2 workers on node 0, got 1 free core of 1: CPUs 0-1;",
        ),
        (
            made(single(0, 2), single(2, 2)),
            Wanted(3, numa_nodes=(1, 1, 1)),
            "for 3 workers on node 1, got 2 free cores of 2: CPUs 2-3;",
        ),
        (
            made(single(0, 4)),
            Wanted(2, cpu_threads=(3, 2)),
            "for 2 workers (5 CPU threads asked for) on node 0, got 4 free cores of 4: CPUs 0-3;",
        ),
        (
            made(single(0, 4)),
            Wanted(2, taken={1: 4711, 2: 4712, 3: 4711}),
            "for 2 workers on node 0, got 1 free core of 4: CPUs 0-3, of which workers have 1-3 (process 4711, 4712);",
        ),
        (
            Topology((NumaNode(UNKNOWN_NODE, ((0,),), 0, ()),), None),
            Wanted(2),
            "for 2 workers on this machine, got 1 free core of 1: CPUs 0;",
        ),
    ],
)
def test_too_few_cores_are_refused(topology: Topology, wanted: Wanted, text: str) -> None:
    with pytest.raises(PinningRefused) as caught:
        plan_workers(topology, wanted)
    assert text in caught.value.message


def test_on_request_hardware_threads_are_shared_out_first() -> None:
    plan = plan_pinning(made([(0, 2), (1, 3)]), Wanted(4, share=True))
    assert cpus_of(plan.workers) == [(0,), (2,), (1,), (3,)]
    assert not plan.oversubscribed


def test_on_request_workers_take_turns_on_cpus_and_say_so() -> None:
    places = plan_workers(made(single(0, 2)), Wanted(3, share=True))
    assert [(place.cpus, place.oversubscribed) for place in places] == [
        ((0,), True),
        ((1,), True),
        ((0,), True),
    ]


def test_sharing_begins_only_where_cores_end() -> None:
    assert plan_workers(made(single(0, 4)), Wanted(2, share=True)) == plan_workers(
        made(single(0, 4)), Wanted(2)
    )
    (place,) = plan_workers(made(single(0, 4)), Wanted(1, share=True, taken={0: 1, 1: 1}))
    assert (place.cpus, place.oversubscribed) == ((2, 3), False)
    (place,) = plan_workers(made(single(0, 2)), Wanted(1, share=True, taken={0: 1, 1: 1}))
    assert (place.cpus, place.oversubscribed) == ((0,), True)


# Who joins


def test_who_joins_gets_what_is_free() -> None:
    topology = made(single(0, 4))
    present = plan_workers(topology, Wanted(1, cpu_threads=(2,)))
    assert cpus_of(plan_joining(topology, Wanted(1), present)) == [(2, 3)]
    assert cpus_of(plan_joining(topology, Wanted(1, taken={2: 77}), present)) == [(3,)]
    with pytest.raises(PinningRefused, match="got 0 free cores of 4: CPUs 0-3, of which workers have 0-3;"):
        plan_joining(topology, Wanted(1), plan_workers(topology, Wanted(1)))


def test_who_joins_on_request_goes_where_the_fewest_are() -> None:
    topology = made(single(0, 4))
    two = plan_workers(topology, Wanted(2))
    joined = plan_joining(topology, Wanted(2, share=True), two)
    assert cpus_of(joined) == [(0,), (1,)]
    assert all(place.oversubscribed for place in joined)
    four = plan_workers(topology, Wanted(4))
    assert plan_joining(topology, Wanted(1, share=True), four[:3]) == (four[3],)


def test_who_joins_on_request_still_has_the_node_it_asked_for() -> None:
    topology = made(single(0, 2), single(2, 2))
    present = plan_workers(topology, Wanted(4))
    (joined,) = plan_joining(topology, Wanted(1, numa_nodes=(1,), share=True), present)
    assert joined.numa_node == 1
    assert joined.oversubscribed


def test_who_joins_gets_a_gpu_of_its_own(tmp_path: Path) -> None:
    topology = two_sockets(tmp_path).discover()
    present = plan_workers(topology, Wanted(2, numa_nodes=(0, 1), cpu_threads=(2, 2), gpus=True))
    joined = plan_joining(topology, Wanted(2, cpu_threads=(2, 2), gpus=True), present)
    assert {place.gpu for place in (*present, *joined)} == {gpu.address for gpu in topology.gpus}


def test_who_joins_where_no_gpu_is_left(tmp_path: Path) -> None:
    topology = two_sockets(tmp_path).discover()
    present = plan_workers(topology, Wanted(4, cpu_threads=(2,) * 4, gpus=True))
    with pytest.raises(ConfigError, match="--workers: expected at most 4, one for each GPU, got 5"):
        plan_joining(topology, Wanted(1, gpus=True), present)
    (shared,) = plan_joining(topology, Wanted(1, gpus=True, share=True), present)
    assert shared.gpu in {gpu.address for gpu in topology.gpus}
    (beside,) = plan_joining(topology, Wanted(1, gpus=True, without_gpu=frozenset({0}), share=True), present)
    assert not beside.gpu


def test_workers_without_a_gpu_among_others(tmp_path: Path) -> None:
    topology = two_sockets(tmp_path).discover()
    found = plan_workers(topology, Wanted(6, gpus=True, without_gpu=frozenset({1, 4})))
    assert [bool(place.gpu) for place in found] == [True, False, True, True, False, True]
    assert plan_workers(topology, Wanted(2, gpus=True, without_gpu=frozenset({0, 1})))[0].gpu == ""


# Any machine, any wish


@st.composite
def wishes(draw: st.DrawFn, topology: Topology) -> Wanted:
    workers = draw(st.integers(0, 12))
    ids = st.none() | st.sampled_from([node.id for node in topology.nodes])
    taken: Mapping[int, int] = dict.fromkeys(draw(st.sets(st.sampled_from(topology.cpus), max_size=20)), 99)
    return Wanted(
        workers,
        tuple(draw(st.lists(ids, max_size=workers))),
        tuple(draw(st.lists(st.none() | st.integers(1, 6), max_size=workers))),
        gpus=bool(topology.gpus) and draw(st.booleans()),
        share=draw(st.booleans()),
        taken=taken,
    )


def core_numbers(topology: Topology) -> dict[int, int]:
    cores = [core for node in topology.nodes for core in node.cores]
    return {cpu: number for number, core in enumerate(cores) for cpu in core}


@given(st.data())
def test_places_never_overlap_and_respect_limits(data: st.DataObject) -> None:
    topology = data.draw(machines())
    wanted = data.draw(wishes(topology))
    try:
        places = plan_workers(topology, wanted)
    except (PinningRefused, ConfigError):
        assert not wanted.share
        return
    assert len(places) == wanted.workers
    core = core_numbers(topology)
    for index, place in enumerate(places):
        assert place.cpus
        assert set(place.cpus) <= set(topology.cpus)
        assert len(topology.nodes_of(place.cpus)) == 1
        asked = (*wanted.cpu_threads, *[None] * len(places))[index]
        assert place.threads == asked if asked else 1 <= place.threads <= len(place.cpus)
        node = (*wanted.numa_nodes, *[None] * len(places))[index]
        if node is not None and topology.nodes[node].has_memory:
            assert place.numa_node == node
        if not wanted.share:
            assert len(place.cpus) >= place.threads
            assert not {core[cpu] for cpu in place.cpus} & {core[cpu] for cpu in wanted.taken}
        elif set(place.cpus) & set(wanted.taken):
            assert place.oversubscribed
    for left, right in combinations(places, 2):
        if set(left.cpus) & set(right.cpus):
            assert wanted.share
            assert left.oversubscribed
            assert right.oversubscribed
        if not wanted.share:
            assert not {core[cpu] for cpu in left.cpus} & {core[cpu] for cpu in right.cpus}
            assert left.gpu == "" or left.gpu != right.gpu
    if len(places) > topology.cpu_budget:
        assert all(place.oversubscribed for place in places)
    if not wanted.share and not any(wanted.cpu_threads):
        assert sum(place.threads for place in places) <= max(len(places), topology.cpu_budget)


@given(st.data())
def test_autos_are_refused_only_where_cores_are_fewer(data: st.DataObject) -> None:
    topology = data.draw(machines())
    count = data.draw(st.integers(1, 12))
    usual = [node for node in topology.nodes if node.cpus and node.has_memory]
    cores = sum(len(node.cores) for node in usual or topology.nodes)
    try:
        places = plan_workers(topology, Wanted(count))
    except PinningRefused:
        assert count > cores
    else:
        assert count <= cores
        assert not usual or all(topology.nodes[place.numa_node].has_memory for place in places)


@given(st.data())
def test_who_joins_leaves_the_others_alone(data: st.DataObject) -> None:
    topology = data.draw(machines())
    first, more = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 5))
    threads = tuple(data.draw(st.lists(st.integers(1, 3), min_size=first, max_size=first)))
    try:
        present = plan_workers(topology, Wanted(first, cpu_threads=threads))
        joined = plan_joining(topology, Wanted(more), present)
    except PinningRefused:
        return
    core = core_numbers(topology)
    used = {core[cpu] for place in present for cpu in place.cpus}
    assert not used & {core[cpu] for place in joined for cpu in place.cpus}
