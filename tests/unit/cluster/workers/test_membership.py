from __future__ import annotations

import threading

import pytest

from colibri.cluster.workers.membership import MembershipPublisher
from colibri.errors import InvalidInput, WorkerLost
from colibri.placement import Placement, WorkerEndpoint, spread

PLACEMENT = spread(2, 4, ["w0", "w1", "w2"])


def endpoint(name: str, incarnation: int) -> WorkerEndpoint:
    return WorkerEndpoint(name, incarnation, f"unix:/{name}.{incarnation}")


def test_every_change_is_a_new_snapshot_of_the_same_placement() -> None:
    publisher = MembershipPublisher(PLACEMENT)
    first = publisher.directory.current()
    publisher.add(endpoint("w0", 1))
    second = publisher.directory.current()
    assert first.endpoints == {}
    assert second.endpoints == {"w0": endpoint("w0", 1)}
    assert first.placement is second.placement is PLACEMENT


def test_the_end_of_an_old_life_does_not_remove_the_new_one() -> None:
    publisher = MembershipPublisher(PLACEMENT)
    publisher.add(endpoint("w0", 1))
    publisher.add(endpoint("w0", 2))
    assert not publisher.remove("w0", 1)
    assert publisher.directory.current().endpoints["w0"].incarnation == 2
    assert publisher.remove("w0", 2)
    assert not publisher.remove("w0", 2)
    assert publisher.directory.current().endpoints == {}


def test_changes_from_many_threads_are_all_kept() -> None:
    publisher = MembershipPublisher(spread(1, 1, [f"w{i}" for i in range(16)]))

    def live(name: str) -> None:
        for incarnation in range(1, 200):
            publisher.add(endpoint(name, incarnation))
            if incarnation < 199:
                assert publisher.remove(name, incarnation)

    threads = [threading.Thread(target=live, args=(f"w{i}",)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = publisher.directory.current().endpoints
    assert {name: end.incarnation for name, end in found.items()} == {f"w{i}": 199 for i in range(16)}


def test_who_joins_holds_what_the_placement_of_that_moment_gives() -> None:
    publisher = MembershipPublisher(PLACEMENT)
    own = frozenset(PLACEMENT.experts_of(0))
    assert publisher.join(endpoint("w0", 1), frozenset()) == (1, sorted(own))
    assert publisher.current.endpoints == {}
    # The placement changes while it loads: all moves to w0.
    everything = Placement(2, PLACEMENT.workers, tuple(tuple((0,) for _ in e) for e in PLACEMENT.holders))
    publisher.commit(everything, {})
    epoch, missing = publisher.join(endpoint("w0", 1), own)
    assert epoch == 2
    assert set(missing) == {(layer, expert) for layer in range(2) for expert in range(4)} - own
    assert publisher.join(endpoint("w0", 1), own | set(missing)) == (2, [])
    assert publisher.current.endpoints == {"w0": endpoint("w0", 1)}
    assert publisher.join(endpoint("w9", 2), frozenset()) == (2, [])


def test_a_commit_needs_the_lives_that_loaded() -> None:
    publisher = MembershipPublisher(PLACEMENT)
    heard: list[int] = []
    publisher.listen(lambda: heard.append(publisher.current.placement.epoch))
    publisher.add(endpoint("w0", 1))
    later = Placement(2, PLACEMENT.workers, PLACEMENT.holders)
    for loaded in ({"w0": 2}, {"w1": 1}, {"w0": 1, "w2": 5}):
        with pytest.raises(WorkerLost, match="died after it had loaded"):
            publisher.commit(later, loaded)
    assert publisher.current.placement is PLACEMENT
    publisher.commit(later, {"w0": 1})
    assert publisher.current.placement is later
    assert publisher.current.endpoints == {"w0": endpoint("w0", 1)}
    assert heard == [1, 2]
    with pytest.raises(InvalidInput, match="at least 2"):
        publisher.commit(PLACEMENT, {})
