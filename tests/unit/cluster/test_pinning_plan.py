from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.cluster.pinning_plan import choose_pins, plan_pinning
from colibri.cluster.topology import NumaNode, Topology
from colibri.errors import InvalidInput


def made(*nodes: list[tuple[int, ...]], quota: float | None = None) -> Topology:
    return Topology(tuple(NumaNode(i, tuple(cores), 0, ((i, 10),)) for i, cores in enumerate(nodes)), quota)


def single(first: int, count: int) -> list[tuple[int, ...]]:
    return [(cpu,) for cpu in range(first, first + count)]


def test_two_workers_on_two_cpus_are_disjoint() -> None:
    plan = plan_pinning(made(single(0, 2)), 2)
    assert [pin.cpus for pin in plan.workers] == [(0,), (1,)]
    assert not plan.oversubscribed
    assert plan.coordinator_cpus == (0, 1)
    assert plan.coordinator_threads == 2


def test_one_worker_per_node() -> None:
    plan = plan_pinning(made(single(0, 64), single(64, 64)), 2)
    assert [(pin.numa_node, len(pin.cpus), pin.threads) for pin in plan.workers] == [(0, 64, 64), (1, 64, 64)]


def test_workers_follow_the_cpus_of_unequal_nodes() -> None:
    plan = plan_pinning(made(single(0, 12), single(12, 4), []), 4)
    assert [pin.numa_node for pin in plan.workers] == [0, 0, 0, 1]
    assert {len(pin.cpus) for pin in plan.workers} == {4}


def test_cores_stay_whole_while_they_last() -> None:
    plan = plan_pinning(made([(0, 4), (1, 5), (2, 6), (3, 7)]), 2)
    assert [pin.cpus for pin in plan.workers] == [(0, 1, 4, 5), (2, 3, 6, 7)]


def test_then_hardware_threads_are_shared_out() -> None:
    plan = plan_pinning(made([(0, 2), (1, 3)]), 4)
    assert [pin.cpus for pin in plan.workers] == [(0,), (2,), (1,), (3,)]
    assert not plan.oversubscribed


def test_more_workers_than_cpus_share_round_robin_and_say_so() -> None:
    plan = plan_pinning(made(single(0, 2)), 3)
    assert [(pin.cpus, pin.oversubscribed) for pin in plan.workers] == [
        ((0,), True),
        ((1,), True),
        ((0,), True),
    ]


def test_a_quota_limits_threads_not_places() -> None:
    plan = plan_pinning(made(single(0, 8), quota=4), 2)
    assert [(len(pin.cpus), pin.threads, pin.oversubscribed) for pin in plan.workers] == [(4, 2, False)] * 2
    assert plan.coordinator_threads == 4
    assert plan_pinning(made(single(0, 8), quota=1.5), 2).oversubscribed


def test_threads_asked_for_win() -> None:
    plan = plan_pinning(made(single(0, 4)), 2, threads=3)
    assert [pin.threads for pin in plan.workers] == [3, 3]
    assert plan.coordinator_threads == 3


def test_no_workers_leaves_all_cpus_to_the_coordinator() -> None:
    plan = plan_pinning(made(single(0, 4)), 0)
    assert plan.workers == ()
    assert plan.coordinator_cpus == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("workers", "threads", "field"), [(-1, None, "workers"), (1, 0, "threads"), (1, 1025, "threads")]
)
def test_counts_out_of_range(workers: int, threads: int | None, field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        plan_pinning(made(single(0, 2)), workers, threads)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any), st.integers(1, 40))
def test_any_machine_any_number(counts: list[int], workers: int) -> None:
    firsts = [sum(counts[:i]) for i in range(len(counts))]
    topology = made(*(single(first, count) for first, count in zip(firsts, counts, strict=True)))
    plan = plan_pinning(topology, workers)
    assert len(plan.workers) == workers
    home = {cpu: node.id for node in topology.nodes for cpu in node.cpus}
    for pin in plan.workers:
        assert pin.cpus
        assert {home[cpu] for cpu in pin.cpus} == {pin.numa_node}
        assert 1 <= pin.threads <= len(pin.cpus)
    for left, right in combinations(plan.workers, 2):
        if set(left.cpus) & set(right.cpus):
            assert left.oversubscribed
            assert right.oversubscribed
    if workers <= len(topology.cpus) and len(counts) == 1:
        assert not plan.oversubscribed
    if workers > len(topology.cpus):
        assert all(pin.oversubscribed for pin in plan.workers)


def test_who_joins_goes_where_the_fewest_are() -> None:
    topology = made(single(0, 4))
    two = plan_pinning(topology, 2).workers
    four = plan_pinning(topology, 4).workers
    joined = choose_pins(four, two, 2)
    assert [pin.cpus for pin in joined] == [(0,), (1,)]
    assert all(pin.oversubscribed for pin in joined)
    left = choose_pins(four, four[:3], 1)
    assert left == (four[3],)
    assert not left[0].oversubscribed
    assert len(choose_pins(four[:1], (), 3)) == 3
