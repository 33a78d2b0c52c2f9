"""Routes over the workers of use; what takes a worker out and brings it back; threads that end."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri.errors import ColibriError, DeadlineExpired, FrameError, NumericsMismatch, WorkerLost
from colibri.placement import Directory, Membership, Placement, WorkerEndpoint, spread
from colibri.router_service.connection import Connection
from colibri.router_service.connections import OnEnd
from colibri.router_service.fleet import Fleet
from colibri.router_service.keeper import Keeper
from colibri.router_service.plan_types import NOBODY
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.routing import ABSENT, EJECTED, READY, UNCONNECTED, division, stand_ins
from colibri.router_service.stats import HealthState, Recorder, RoutingEvents
from colibri.row_division import PARTS, worker_loads
from colibri.transport.link import LinkKind
from colibri.wire.limits import FrameLimits
from tests.support.clusters import eventually

Make = Callable[[Membership], tuple[Fleet, Directory, Recorder[RoutingEvents]]]

LAYERS, EXPERTS = 2, 6
LIMITS = FrameLimits(LAYERS, EXPERTS, 2, 4, "fp32")
NAMES = ("w0", "w1", "w2")


class SilentLink:
    """Takes everything, answers nothing."""

    kind = LinkKind.GRPC
    peer = "w"
    lost: str | None = None

    def send(self, parts: Sequence[bytes | memoryview], timeout_s: float = 1.0) -> None:
        if self.lost is not None:
            raise WorkerLost(self.lost, peer=self.peer)

    def receive(self, timeout_s: float) -> memoryview:
        time.sleep(min(timeout_s, 0.01))
        raise DeadlineExpired("nothing", peer=self.peer)

    def close(self) -> None:
        self.lost = "closed"


class Workers:
    """What the fleet connects to: refuses or hangs on demand."""

    def __init__(self) -> None:
        self.refuse: dict[str, ColibriError] = {}
        self.hang: dict[str, threading.Event] = {}
        self.attempts: list[str] = []

    def connect(self, endpoint: WorkerEndpoint, timeout_s: float, on_end: OnEnd) -> Connection:
        self.attempts.append(endpoint.name)
        hang = self.hang.get(endpoint.name)
        if hang is not None and not hang.wait(timeout_s):
            raise WorkerLost("no handshake", peer=endpoint.name)
        error = self.refuse.get(endpoint.name)
        if error is not None:
            raise error
        return Connection(endpoint, SilentLink(), LIMITS, 64, on_end=on_end)


def membership(
    names: Sequence[str] = NAMES, epoch: int = 1, replicas: int = 2, incarnation: int = 1
) -> Membership:
    alive = {name: WorkerEndpoint(name, incarnation, "unix:/x") for name in names}
    return Membership(spread(LAYERS, EXPERTS, NAMES, replicas, epoch), alive)


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def make(workers: Workers) -> Iterator[Make]:
    fleets = []

    def make(first: Membership) -> tuple[Fleet, Directory, Recorder[RoutingEvents]]:
        directory = Directory(first)
        happened = Recorder(RoutingEvents())
        keeper = Keeper(workers.connect, LIMITS, itertools.count(1), 2.0)
        fleets.append(Fleet(directory, FailoverPolicy(), happened, keeper.start))
        return fleets[-1], directory, happened

    yield make
    for fleet in fleets:
        fleet.close(5.0)
    eventually(lambda: not keepers(), 5.0, "the keepers end")


def keepers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("colibri-keeper")]


def ready(fleet: Fleet, directory: Directory, *names: str) -> None:
    def all_ready() -> bool:
        routes = fleet.routes(directory.current())
        ranks = dict(zip(routes.placement.workers, routes.ranks, strict=True))
        return all(ranks[name] == READY for name in names)

    eventually(all_ready, 5.0, f"{names} are connected")


def owners(placement: Placement, layer: int, ranks: Sequence[int]) -> NDArray[np.intp]:
    """Where nothing is divided."""
    answering = division(placement, layer, ranks)
    assert all(parts == ((parts[0][0], PARTS),) for parts in answering)
    return np.array([parts[0][0] for parts in answering])


def test_owners_by_rank() -> None:
    placement = spread(1, 6, NAMES, replicas=2)
    first = placement.owner(0).tolist()
    assert owners(placement, 0, (READY, READY, READY)).tolist() == first
    for rank in (EJECTED, UNCONNECTED, ABSENT):
        # w1's experts go to w2, which leaves one of its own to w0: three each.
        found = owners(placement, 0, (READY, rank, READY)).tolist()
        assert sorted(found) == [0, 0, 0, 2, 2, 2]
        assert found[1] == found[4] == 2
    # The better of two bad ones.
    assert owners(placement, 0, (ABSENT, EJECTED, UNCONNECTED)).tolist() == [1, 1, 2, 1, 1, 2]
    assert sorted(owners(placement, 0, (ABSENT, ABSENT, ABSENT)).tolist()) == sorted(first)


def test_what_a_lost_worker_leaves_is_shared_by_all() -> None:
    placement = spread(1, 64, tuple(f"w{n}" for n in range(8)), replicas=2)
    ranks = (READY, READY, READY, ABSENT, READY, READY, READY, READY)
    counts = np.bincount(owners(placement, 0, ranks), minlength=8).tolist()
    assert counts[3] == 0
    assert max(counts) - min(counts[:3] + counts[4:]) <= 2


def test_known_loads_are_shared_by_load_also_when_a_worker_is_lost() -> None:
    holders = spread(1, 12, tuple(f"w{n}" for n in range(4)), replicas=3).holders
    loads = (tuple(float(2**e) for e in range(12)),)
    placement = Placement(1, ("w0", "w1", "w2", "w3"), holders, loads, (1.0, 1.0, 2.0, 1.0))
    for lost in (None, 0, 2):
        ranks = [ABSENT if worker == lost else READY for worker in range(4)]
        taken = worker_loads(division(placement, 0, ranks), loads[0], 4)
        alive = [w for w in range(4) if w != lost]
        speed = sum((1.0, 1.0, 2.0, 1.0)[w] for w in alive)
        for worker in alive:
            assert taken[worker] <= 1.1 * sum(loads[0]) * (1.0, 1.0, 2.0, 1.0)[worker] / speed
        assert lost is None or taken[lost] == 0


def test_owners_agree_with_the_rule_in_its_own_words() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        count = int(rng.integers(1, 5))
        holders = tuple(
            tuple(rng.permutation(count)[: rng.integers(1, count + 1)].tolist()) for _ in range(EXPERTS)
        )
        placement = Placement(1, tuple(f"w{n}" for n in range(count)), (holders,))
        ranks = rng.integers(0, 4, count).tolist()
        chosen = owners(placement, 0, ranks).tolist()
        in_order = all(ranks[w[0]] == READY for w in holders)
        for expert, owner in enumerate(chosen):
            best = min(ranks[w] for w in holders[expert])
            assert ranks[owner] == best
            if in_order:
                assert owner == holders[expert][0]
            else:  # nobody else could answer for it and have fewer
                others = [w for w in holders[expert] if ranks[w] == best]
                assert all(chosen.count(w) + 1 >= chosen.count(owner) for w in others)
        usable = {w: r for w, r in enumerate(ranks) if r <= EJECTED}
        for expert, worker in stand_ins(placement, 0, range(EXPERTS), usable.get).items():
            able = [w for w in holders[expert] if w in usable]
            assert worker == (min(able, key=usable.__getitem__) if able else NOBODY)


def test_all_workers_are_connected_beside_each_other(workers: Workers, make: Make) -> None:
    workers.hang["w0"] = threading.Event()
    fleet, directory, _ = make(membership())
    begun = time.monotonic()
    routes = fleet.routes(directory.current())
    assert time.monotonic() - begun < 0.5
    assert routes.ranks[0] == UNCONNECTED
    ready(fleet, directory, "w1", "w2")
    assert fleet.routes(directory.current()).ranks[0] == UNCONNECTED
    workers.hang["w0"].set()
    ready(fleet, directory, *NAMES)
    assert fleet.routes(directory.current()) is fleet.routes(directory.current())
    eventually(lambda: not keepers(), 5.0, "the keepers end")


def test_a_lost_connection_changes_the_routes_and_is_made_again(workers: Workers, make: Make) -> None:
    fleet, directory, _ = make(membership())
    ready(fleet, directory, *NAMES)
    before = fleet.routes(directory.current())
    workers.refuse["w1"] = WorkerLost("nobody listens", peer="w1")
    peer = before.peers[1]
    assert peer is not None
    assert peer.connection is not None
    peer.connection.fail(WorkerLost("w1: stream lost", peer="w1"))
    after = fleet.routes(directory.current())
    assert after.ranks[1] == UNCONNECTED
    assert 1 not in after.table(0).owners
    eventually(lambda: workers.attempts.count("w1") >= 3, 5.0, "it is tried again")
    assert fleet.report()["w1"].state is HealthState.LOST
    del workers.refuse["w1"]
    ready(fleet, directory, "w1")
    assert fleet.report()["w1"].state is HealthState.HEALTHY


def test_links_that_end_while_idle_are_noticed(
    make: Make,
) -> None:
    fleet, directory, _ = make(membership())
    ready(fleet, directory, *NAMES)
    old = fleet.routes(directory.current()).peers[0]
    assert old is not None
    connection = old.connection
    assert connection is not None
    connection._link.close()
    fleet.check_links()
    assert connection.lost is not None
    ready(fleet, directory, "w0")


def test_bad_replies_eject(make: Make) -> None:
    fleet, directory, happened = make(membership())
    ready(fleet, directory, *NAMES)
    peer = fleet.routes(directory.current()).peers[2]
    assert peer is not None
    assert peer.connection is not None
    peer.connection.fail(FrameError("w2: crc32c", peer="w2"))
    eventually(lambda: peer.connection is not None, 5.0, "it is connected again")
    routes = fleet.routes(directory.current())
    assert routes.ranks[2] == EJECTED
    assert 2 not in routes.table(1).owners
    counts = happened.snapshot()
    assert (counts.bad_replies, counts.ejections) == (1, 1)


def test_the_last_of_its_kind_is_not_ejected(
    make: Make,
) -> None:
    fleet, directory, happened = make(membership(replicas=1))
    ready(fleet, directory, *NAMES)
    peer = fleet.routes(directory.current()).peers[0]
    assert peer is not None
    fleet.eject(peer)
    assert fleet.report()["w0"].state is HealthState.SUSPECT
    assert fleet.routes(directory.current()).ranks == (READY, READY, READY)
    assert happened.snapshot().ejections == 0


def test_all_but_one_may_be_ejected(
    make: Make,
) -> None:
    fleet, directory, happened = make(membership(replicas=3))
    ready(fleet, directory, *NAMES)
    for peer in fleet.routes(directory.current()).peers:
        assert peer is not None
        fleet.eject(peer)
    routes = fleet.routes(directory.current())
    assert routes.ranks == (EJECTED, EJECTED, READY)
    assert set(routes.table(0).owners) == {2}
    assert fleet.report()["w2"].state is HealthState.SUSPECT
    assert happened.snapshot().ejections == 2


def test_a_slow_worker_is_found_by_comparison(
    make: Make,
) -> None:
    fleet, directory, _ = make(membership())
    ready(fleet, directory, *NAMES)
    peers = fleet.routes(directory.current()).peers

    def round_of(slow: float, exact: bool = True) -> None:
        for number, peer in enumerate(peers):
            assert peer is not None
            for _ in range(10):
                peer.latency.windows[2].add(slow if number == 1 else 0.001, exact)
        fleet.compare()

    for _ in range(5):
        round_of(0.5, exact=False)  # upper bounds: no evidence
    assert fleet.report()["w1"].state is HealthState.HEALTHY
    round_of(0.5)
    assert fleet.report()["w1"].state is HealthState.SUSPECT
    assert fleet.routes(directory.current()).ranks[1] == READY
    round_of(0.5)
    fleet.compare()  # nothing new: no round
    assert fleet.routes(directory.current()).ranks[1] == READY
    round_of(0.5)
    assert fleet.routes(directory.current()).ranks[1] == EJECTED


def test_new_lives_and_workers_that_leave(workers: Workers, make: Make) -> None:
    fleet, directory, _ = make(membership())
    ready(fleet, directory, *NAMES)
    old = fleet.routes(directory.current()).peers
    directory.publish(membership(("w0", "w1"), incarnation=2))
    routes = fleet.routes(directory.current())
    assert routes.ranks[2] == ABSENT
    for peer in old:
        assert peer is not None
        assert peer.over.is_set()
        assert peer.connection is None
    ready(fleet, directory, "w0", "w1")
    assert fleet.report()["w0"].incarnation == 2
    assert fleet.report()["w2"].state is HealthState.LOST
    # By an old snapshot nobody of it is alive.
    assert set(fleet.routes(membership()).ranks) == {ABSENT}


def test_a_worker_that_refuses_for_good_is_not_asked_again(workers: Workers, make: Make) -> None:
    workers.refuse["w1"] = NumericsMismatch("w1: model_hash", peer="w1")
    fleet, directory, _ = make(membership())
    ready(fleet, directory, "w0", "w2")
    eventually(lambda: not keepers(), 5.0, "the keepers end")
    time.sleep(0.2)
    assert workers.attempts.count("w1") == 1


def test_waiting_for_news(make: Make) -> None:
    fleet, directory, _ = make(membership())
    ready(fleet, directory, *NAMES)
    eventually(lambda: not keepers(), 5.0, "the keepers end")
    events = fleet.events
    assert fleet.wait(events, 0.05) == events
    threading.Timer(0.05, lambda: (directory.publish(membership(("w0",), 2)), fleet.follow())).start()
    assert fleet.wait(events, 5.0) > events


def test_many_lives_leave_nothing(workers: Workers, make: Make) -> None:
    fleet, directory, _ = make(membership())
    for incarnation in range(2, 200):
        directory.publish(membership(incarnation=incarnation))
        fleet.follow()
    ready(fleet, directory, *NAMES)
    assert len(fleet.present()) == 3
    eventually(lambda: not keepers(), 10.0, "the keepers end")
