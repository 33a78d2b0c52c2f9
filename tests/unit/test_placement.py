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
