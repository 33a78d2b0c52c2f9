from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.errors import InvalidInput
from colibri.placement import Directory, Membership, Placement, WorkerEndpoint, spread


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 9), st.data())
def test_spread(layers: int, experts: int, count: int, data: st.DataObject) -> None:
    replicas = data.draw(st.integers(1, count))
    workers = [f"w{index}" for index in range(count)]
    placement = spread(layers, experts, workers, replicas, epoch=4)
    assert (placement.epoch, placement.workers) == (4, tuple(workers))
    assert (placement.layers, placement.experts) == (layers, experts)
    for layer in range(layers):
        held = np.zeros(count, int)
        for holders in placement.holders[layer]:
            assert len(set(holders)) == replicas
            held[list(holders)] += 1
        assert held.max() - held.min() <= replicas
        owner = placement.owner(layer)
        owned = np.bincount(owner, minlength=count)
        assert owned.max() - owned.min() <= 1
        assert owner.dtype == np.uint32
        assert owner.tolist() == [holders[0] for holders in placement.holders[layer]]
    assert sum(len(placement.experts_of(index)) for index in range(count)) == layers * experts * replicas


def test_experts_of_names_owners_and_replicas() -> None:
    placement = Placement(1, ("a", "b"), (((0,), (1, 0)), ((1,), (0, 1))))
    assert placement.experts_of(0) == [(0, 0), (0, 1), (1, 1)]
    assert placement.experts_of(1) == [(0, 1), (1, 0), (1, 1)]


def test_owner_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        spread(1, 2, ["a"]).owner(0)[0] = 1


@pytest.mark.parametrize(
    ("epoch", "workers", "holders", "message"),
    [
        (0, ("a",), (((0,),),), "placement.epoch: expected at least 1, got 0"),
        (1, ("a", "a"), (((0,),),), "placement.workers: expected names that differ"),
        (1, ("a",), (((0,),), ((0,), (0,))), r"placement.holders\[1\]: expected 1 experts, got 2"),
        (1, ("a",), (((),),), r"placement.holders\[0\]\[0\]: expected at least one worker, got none"),
        (1, ("a",), (((1,),),), r"placement.holders\[0\]\[0\]: expected indices below 1"),
        (1, ("a",), (((-1,),),), r"placement.holders\[0\]\[0\]: expected indices below 1"),
        (1, ("a", "b"), (((1, 1),),), r"placement.holders\[0\]\[0\]: expected workers that differ"),
    ],
)
def test_wrong_placements(
    epoch: int, workers: tuple[str, ...], holders: tuple[tuple[tuple[int, ...], ...], ...], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Placement(epoch, workers, holders)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((0, 1, ["a"]), "layers"),
        ((1, 0, ["a"]), "experts"),
        ((1, 1, []), "workers"),
        ((1, 1, ["a"], 2), "replicas"),
        ((1, 1, ["a"], 0), "replicas"),
    ],
)
def test_wrong_spreads(arguments: tuple[int, int, list[str]], field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: expected"):
        spread(*arguments)


def membership(epoch: int, *names: str) -> Membership:
    return Membership(
        spread(1, 1, ["a", "b"], epoch=epoch), {n: WorkerEndpoint(n, 1, "unix:/x") for n in names}
    )


def test_a_waiter_sees_the_next_membership() -> None:
    first, second = membership(1, "a"), membership(1, "a", "b")
    directory = Directory(first)
    seen: list[Membership] = []
    waiter = threading.Thread(target=lambda: seen.append(directory.wait_change(first, 10.0)))
    waiter.start()
    directory.publish(second)
    waiter.join(10.0)
    assert seen == [second]
    assert directory.current() is second
    assert directory.wait_change(first, 10.0) is second


def test_a_wait_has_a_bound() -> None:
    first = membership(1)
    begin = time.monotonic()
    assert Directory(first).wait_change(first, 0.05) is first
    assert time.monotonic() - begin >= 0.05


def test_epochs_never_go_back() -> None:
    directory = Directory(membership(3))
    directory.publish(membership(3, "a"))
    with pytest.raises(InvalidInput, match=r"membership\.placement\.epoch: expected at least 3, got 2"):
        directory.publish(membership(2))


def test_readers_hold_up_whoever_waits_for_their_epoch() -> None:
    directory = Directory(membership(1, "a"))
    assert directory.wait_unused(1, 0.0)
    with directory.reading() as old:
        assert directory.wait_unused(1, 0.0)  # nobody reads an older epoch
        directory.publish(membership(2, "a"))
        begin = time.monotonic()
        assert not directory.wait_unused(2, 0.05)
        assert time.monotonic() - begin >= 0.05
        with directory.reading() as new:
            assert new.newest() is new.membership
            assert old.newest() is new.membership  # and stays a reader of both
            assert (old.membership.placement.epoch, new.membership.placement.epoch) == (1, 2)
    assert directory.wait_unused(2, 0.0)


def test_the_last_reader_wakes_who_waits() -> None:
    directory = Directory(membership(1, "a"))
    readers = [directory.reading() for _ in range(3)]
    for reader in readers:
        reader.__enter__()
    directory.publish(membership(3, "a"))
    done: list[bool] = []
    waiter = threading.Thread(target=lambda: done.append(directory.wait_unused(3, 10.0)))
    waiter.start()
    for reader in readers:
        assert waiter.is_alive()
        reader.__exit__()
    waiter.join(10.0)
    assert done == [True]


def test_no_reader_is_missed_however_many_threads() -> None:
    """While epochs change all the time, nobody is with an epoch of which wait_unused said that it is unused."""
    directory = Directory(membership(1, "a"))
    retired, over, problems = [0], threading.Event(), []

    def read() -> None:
        while not over.is_set():
            with directory.reading() as reading:
                seen = reading.membership
                for _ in range(20):
                    if seen.placement.epoch < retired[0]:
                        problems.append((seen.placement.epoch, retired[0]))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for epoch in range(2, 60):
        directory.publish(membership(epoch, "a"))
        assert directory.wait_unused(epoch, 10.0)
        retired[0] = epoch
    over.set()
    for thread in threads:
        thread.join(10.0)
    assert problems == []


def test_partners_hold_an_expert_in_common() -> None:
    placement = Placement(1, ("a", "b", "c", "d"), (((0, 1), (2,)), ((1, 0), (2, 3))))
    assert [placement.partners(index) for index in range(4)] == [{1}, {0}, {3}, {2}]
    assert all(not spread(2, 5, ["a", "b"]).partners(index) for index in range(2))
