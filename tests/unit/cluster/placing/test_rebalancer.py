"""When a placement is planned anew by itself."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.placing.desired import Desired
from colibri.cluster.placing.planner.problem import Worker
from colibri.cluster.placing.rebalance_options import PlacementPolicy, RebalanceMode, RebalanceOptions
from colibri.cluster.placing.rebalancer import Rebalancer
from colibri.cluster.placing.worker_facts import worker_facts
from colibri.errors import InvalidInput
from colibri.placement import WorkerEndpoint, spread

WORKERS = ("w0", "w1", "w2", "w3")
HOT = np.array([[8, 1, 1, 1, 1, 1, 1, 1]] * 2)
EVEN = np.ones((2, 8), np.int64)


class Counters:
    def __init__(self) -> None:
        self.now = 0.0
        self.rows: NDArray[np.int64] = np.zeros((2, 8), np.int64)

    def clock(self) -> float:
        return self.now


def made(counters: Counters, mode: RebalanceMode = RebalanceMode.ON) -> Rebalancer:
    options = RebalanceOptions(mode, interval_s=10.0, half_life_s=100.0, min_rows=1000)
    return Rebalancer(lambda: counters.rows, options, counters.clock)


def place(shared: bool = False, threads: int = 1) -> WorkerPinning:
    return WorkerPinning(0, (0,), threads, shared)


def test_it_looks_when_it_is_due_and_the_mode_allows_it() -> None:
    counters = Counters()
    for mode, shared, active in (
        (RebalanceMode.AUTO, False, True),
        (RebalanceMode.AUTO, True, False),
        (RebalanceMode.ON, True, True),
        (RebalanceMode.OFF, False, False),
    ):
        rebalancer = made(counters, mode)
        assert not rebalancer.due([place(shared)])
        counters.now += 10.0
        assert rebalancer.due([place(shared)]) == active
        assert rebalancer.view().active == active


def test_only_what_is_worth_it() -> None:
    counters = Counters()
    placement = spread(2, 8, WORKERS)
    desired = Desired.of(placement, 1)
    rebalancer = made(counters)
    counters.rows = counters.rows + 10 * HOT
    assert rebalancer.look(desired, placement) is None
    assert "too little was measured: 150 of 4000 rows" in rebalancer.view().last
    counters.rows = counters.rows + 1000 * EVEN
    assert rebalancer.look(desired, placement) is None
    assert "left as it is" in rebalancer.view().last
    counters.rows = counters.rows + 3000 * HOT
    proposal = rebalancer.look(desired, placement)
    assert proposal is not None
    assert proposal.gain > 0.3
    assert proposal.after.slowdown < 1.1 < proposal.before.slowdown
    assert proposal.desired.loads is not None
    assert len(proposal.loads) >= 2
    assert proposal.nbytes == len(proposal.loads)


def test_what_was_long_ago_counts_less() -> None:
    counters = Counters()
    rebalancer = made(counters)
    counters.rows = counters.rows + 100 * HOT
    assert rebalancer.look(Desired.of(spread(2, 8, WORKERS), 1), spread(2, 8, WORKERS)) is None
    counters.now = 100.0
    counters.rows = counters.rows + 100 * EVEN
    assert rebalancer.measured() == tuple(map(tuple, (50.0 * HOT + 100 * EVEN).tolist()))


def test_nothing_measured_is_told() -> None:
    with pytest.raises(
        InvalidInput, match="loads: expected measured loads: some requests first, got none yet"
    ):
        made(Counters()).measured()


def test_moves_must_pay() -> None:
    counters = Counters()
    counters.rows = 100000 * HOT
    placement = spread(2, 8, WORKERS)
    dear = RebalanceOptions(RebalanceMode.ON, policy=PlacementPolicy(move_cost=100.0))
    rebalancer = Rebalancer(lambda: counters.rows - 0, dear, counters.clock)
    counters.rows = 2 * counters.rows
    assert rebalancer.look(Desired.of(placement, 1), placement) is None


def test_replicas_that_came_to_share_a_host_are_parted() -> None:
    """A worker was started anew on another host: its experts' other holders may be there."""
    counters = Counters()
    placement = spread(2, 8, WORKERS, 2)
    facts = {name: Worker(name, host) for name, host in zip(WORKERS, ("a", "a", "b", "b"), strict=True)}
    desired = Desired.of(placement, 2)
    desired = Desired(desired.workers, (), 2, desired.holders, facts=facts)
    rebalancer = made(counters)
    counters.rows = counters.rows + 1000 * EVEN
    proposal = rebalancer.look(desired, placement)
    assert proposal is not None
    for experts in proposal.desired.holders:
        for names in experts:
            assert len({facts[name].host for name in names}) == len(names) == 2


def test_facts_of_workers() -> None:
    endpoints = {
        name: WorkerEndpoint(name, 1, target)
        for name, target in (
            ("w0", "unix:/tmp/x"),
            ("w1", "127.0.0.1:5"),
            ("w2", "10.0.0.7:5"),
            ("w3", "10.0.0.7:6"),
        )
    }
    facts = worker_facts([*WORKERS, "w4"], endpoints, {"w2": place(threads=8)}, 100)
    assert [facts[name].host for name in WORKERS] == ["", "", "10.0.0.7", "10.0.0.7"]
    assert [facts[name].speed for name in WORKERS] == [1.0, 1.0, 8.0, 1.0]
    assert facts["w4"] == Worker("w4", memory=100)
