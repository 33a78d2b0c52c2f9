"""Where `colibri expert` goes on made-up machines, and what `serve` makes of lists of nodes and threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.deployment.expert_place import PlaceWish, expert_place
from colibri.deployment.pinning import PinningOptions
from colibri.deployment.places import Places, when_free
from colibri.errors import ConfigError, PinningRefused
from colibri.expert_service.cpu_locks import CpuLocks
from tests.support.cpu_holder import holder
from tests.support.machine_trees import MachineTree, two_sockets

NOBODY = CpuLocks(None)


def unmeasured(cpu: int, node: int) -> None:
    return None


def placed(tree: MachineTree, locks: CpuLocks = NOBODY, **wish: object) -> WorkerPinning:
    place, crossing = expert_place(PlaceWish(**wish), locks, tree.roots, unmeasured)  # type: ignore[arg-type]
    assert crossing == ""
    return place


@pytest.fixture
def two(tmp_path: Path) -> MachineTree:
    return two_sockets(tmp_path)


@contextmanager
def locks_of(file: Path) -> Iterator[CpuLocks]:
    locks = CpuLocks(file)
    yield locks
    locks.close()


def test_auto_takes_the_free_cores_of_one_node(two: MachineTree) -> None:
    assert placed(two) == WorkerPinning(0, (0, 1, 2, 3, 8, 9, 10, 11), 8, False)
    assert placed(two, numa_node=1).cpus == (4, 5, 6, 7, 12, 13, 14, 15)
    assert placed(two, cpu_threads=3) == WorkerPinning(0, (0, 1, 8, 9), 3, False)


def test_auto_goes_where_others_are_not(two: MachineTree, tmp_path: Path) -> None:
    file = tmp_path / "cpus"
    with locks_of(file) as locks, holder(file, 1, 2, 3), holder(file, 14):
        assert placed(two, locks, cpu_threads=4) == WorkerPinning(1, (4, 5, 12, 13), 4, False)
        assert locks.taken().keys() == {1, 2, 3, 14}
    with locks_of(file) as locks, holder(file, *range(8)):
        assert placed(two, locks, share=True, cpu_threads=1) == WorkerPinning(0, (8,), 1, False)
    with locks_of(file) as locks, holder(file, *range(16)):
        assert placed(two, locks, share=True, cpu_threads=1) == WorkerPinning(0, (0,), 1, True)


def test_cpus_by_name_bring_their_node(two: MachineTree) -> None:
    assert placed(two, cpus=(5, 4)) == WorkerPinning(1, (4, 5), 2, False)
    assert placed(two, cpus=(5,), cpu_threads=3, numa_node=1, share=True) == WorkerPinning(1, (5,), 3, True)
    assert placed(two, cpus=(3, 4), numa_node=-1) == WorkerPinning(-1, (3, 4), 2, False)


def test_without_a_policy_and_cpus_nothing_is_pinned(two: MachineTree) -> None:
    assert placed(two, numa_node=-1) == WorkerPinning(-1, (), 16, False)


def test_the_mask_of_the_process_binds_only_who_names_no_cpus(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path).nodes("0-3", "4-7").allowed("4-5", "0-1")
    assert placed(tree).cpus == (4, 5)
    assert placed(tree, cpus=(6,)).cpus == (6,)
    tree.write("self/cgroup", "0::/").write("fs/cgroup/cpuset.cpus.effective", "4-5")
    with pytest.raises(
        ConfigError, match=r"--cpus: expected CPUs that are online and allowed here \(4-5\), got 6"
    ):
        placed(tree, cpus=(6,))


@pytest.mark.parametrize(
    ("wish", "error", "text"),
    [
        ({"cpus": (7, 99)}, ConfigError, r"--cpus: expected CPUs .* \(0-15\), got 7,99"),
        ({"cpus": ()}, ConfigError, r"--cpus: expected CPUs .* \(0-15\), got none"),
        ({"numa_node": 2}, ConfigError, r"--numa-node: expected one of this machine's nodes \(0-1\), got 2"),
        ({"cpus": (1,), "numa_node": 2}, ConfigError, r"--numa-node: expected one of .*\(0-1\), got 2"),
        ({"cpus": (1, 4, 5)}, PinningRefused, "CPUs 1 on node 0, CPUs 4-5 on node 1, memory on node 1"),
        ({"cpus": (4,), "numa_node": 0}, PinningRefused, "CPUs 4 on node 1, memory on node 0: .*2.1 times"),
        ({"cpu_threads": 9}, PinningRefused, r"\(9 CPU threads asked for\) on node 0, got 4 free cores of 4"),
    ],
)
def test_refusals(two: MachineTree, wish: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        placed(two, **wish)


def test_told_to_go_on_it_says_what_it_costs(two: MachineTree) -> None:
    wish = PlaceWish(cpus=(4,), numa_node=0, cross_node=True)
    place, crossing = expert_place(wish, NOBODY, two.roots, unmeasured)
    assert place == WorkerPinning(0, (4,), 1, False)
    assert "CPUs 4 on node 1, memory on node 0" in crossing


# The workers of a deployment


def planned(
    tree: MachineTree, workers: int, locks: CpuLocks = NOBODY, **options: object
) -> list[WorkerPinning]:
    wanted = PinningOptions(**options)  # type: ignore[arg-type]
    places = Places(tree.discover(), wanted, None, locks, lambda line: None, unmeasured)
    return list(places.first(workers).workers)


def test_one_value_stands_for_all_workers_and_a_list_for_each(two: MachineTree) -> None:
    assert [place.numa_node for place in planned(two, 2)] == [0, 1]
    assert [place.numa_node for place in planned(two, 2, numa_nodes=(1,))] == [1, 1]
    each = planned(two, 3, numa_nodes=(1, None, 0), cpu_threads=(2, 4, None))
    assert [(place.numa_node, place.threads) for place in each] == [(1, 2), (1, 4), (0, 8)]


@pytest.mark.parametrize(
    ("workers", "options", "text"),
    [
        (3, {"numa_nodes": (0, 1)}, "--numa-node: expected one value, or one for each of 3 workers, got 0,1"),
        (2, {"cpu_threads": (1, None, 1)}, "--cpu-threads: expected one value, .* 2 workers, got 1,auto,1"),
        (
            0,
            {"cpu_threads": (1,)},
            "--cpu-threads: expected auto, where this process starts no workers, got 1",
        ),
        (1, {"numa_nodes": (7,)}, r"--numa-node: expected one of this machine's nodes \(0-1\), got 7"),
    ],
)
def test_options_that_cannot_be_met(
    two: MachineTree, workers: int, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        planned(two, workers, **options)


def test_a_worker_that_would_span_nodes_is_named(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path).nodes("0-3", "4-7", "", distances=("10 21 24", "21 10 14", "24 14 10"))
    with pytest.raises(
        PinningRefused, match=r"worker w1: .* CPUs 4-7 on node 1, memory on node 2: .*1.4 times"
    ):
        planned(tree, 2, numa_nodes=(0, 2))
    log: list[str] = []
    options = PinningOptions((0, 2), cross_node=True)
    places = Places(tree.discover(), options, None, NOBODY, log.append, unmeasured).first(2).workers
    assert [(place.numa_node, place.cpus) for place in places] == [(0, (0, 1, 2, 3)), (2, (4, 5, 6, 7))]
    assert len(log) == 1
    assert log[0].startswith("worker w1: CROSSES NUMA NODES: CPUs 4-7 on node 1, memory on node 2")


def test_what_others_have_is_left_to_them(two: MachineTree, tmp_path: Path) -> None:
    file = tmp_path / "cpus"
    with locks_of(file) as locks, holder(file, 0, 1, 2, 3) as other:
        assert [place.numa_node for place in planned(two, 2, locks)] == [1, 1]
        with pytest.raises(PinningRefused, match=rf"5 of 5|for 5 workers.*\(process {other.pid}\)"):
            planned(two, 5, locks, numa_nodes=(0,))
    with locks_of(file) as locks:
        assert [place.numa_node for place in planned(two, 2, locks)] == [0, 1]


def test_who_joins_has_its_own_wish(two: MachineTree) -> None:
    options = PinningOptions((0, 0, 1), (2,))
    places = Places(two.discover(), options, None, NOBODY, lambda line: None, unmeasured)
    present = places.first(3).workers
    joined = places.joining(present, [f"w{len(present)}"])
    assert joined[0].threads == 2
    assert not {cpu for place in present for cpu in place.cpus} & set(joined[0].cpus)
    full = Places(two.discover(), PinningOptions(), None, NOBODY, lambda line: None, unmeasured)
    with pytest.raises(PinningRefused, match="got 0 free cores"):
        full.joining(full.first(2).workers, ["w2"])
    sharing = Places(two.discover(), PinningOptions(share=True), 1, NOBODY, lambda line: None, unmeasured)
    (shared,) = sharing.joining(sharing.first(2).workers, ["w2"])
    assert shared.oversubscribed
    assert shared.threads == 1


def test_a_plan_is_tried_again_while_others_have_cpus(tmp_path: Path) -> None:
    file = tmp_path / "cpus"
    tries: list[dict[int, int]] = []

    def plan(taken: dict[int, int]) -> str:
        tries.append(taken)
        if taken:
            raise PinningRefused("not yet")
        return "done"

    with locks_of(file) as locks, holder(file, 3) as other:

        def sleep(seconds: float) -> None:
            other.kill()
            other.wait(10)

        assert when_free(locks, plan, sleep=sleep) == "done"
    assert tries == [{3: other.pid}, {}]


def test_a_plan_that_nobody_stands_in_the_way_of_is_refused_at_once() -> None:
    def plan(taken: dict[int, int]) -> None:
        raise PinningRefused("no")

    def sleep(seconds: float) -> None:
        raise AssertionError("nothing to wait for")

    with pytest.raises(PinningRefused):
        when_free(NOBODY, plan, sleep=sleep)
