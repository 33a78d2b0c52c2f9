from __future__ import annotations

import threading

from colibri.cluster.membership import MembershipPublisher
from colibri.placement import WorkerEndpoint, spread

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
