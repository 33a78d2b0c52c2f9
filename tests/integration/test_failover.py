"""Whatever happens to one worker, while another holds its experts: no row fails, and no bit differs from the executor
of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colibri.deadline import Deadline
from colibri.errors import Busy, DeadlineExpired, WorkerLost
from colibri.expert_service.assembly import WorkerServer
from colibri.expert_service.faults import FaultKind, FaultRule
from colibri.kernels.api import F32, U32, Array, Backend, ComputeMode, UnitBatch
from colibri.kernels.factory import make_backend
from colibri.placement import Directory, Placement
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.remote import RemoteExecutor
from colibri.router_service.router import MoeRouter
from colibri.router_service.stats import HealthState
from colibri.transport.link import LinkKind
from tests.support.clusters import eventually
from tests.support.expert_servers import MoeBench, membership_of

#: Failover alone: what a hedge would hide shows.
POLICY = FailoverPolicy(hedge=False, deadline_cold_s=0.25, wait_for_holder_s=10.0)
LINKS = pytest.mark.parametrize("link", [LinkKind.GRPC, LinkKind.SHARED_MEMORY], ids=lambda link: link.value)


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    backend = make_backend("cpu", threads=1)
    yield backend
    backend.close()


@pytest.fixture
def bench(tiny_mixtral: Path, tmp_path: Path, backend: Backend) -> MoeBench:
    return MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path, backend)


class Cluster:
    """Workers w0, w1, ... of this process that hold everything, a placement with replicas, and a router over them."""

    def __init__(
        self, bench: MoeBench, servers: dict[str, WorkerServer], router: MoeRouter, executor: RemoteExecutor
    ):
        self.bench = bench
        self.servers = servers
        self.router = router
        self.executor = executor
        self._rng = np.random.default_rng(21)

    @property
    def directory(self) -> Directory:
        return self.router.directory

    def step(self, rows: int = 24, deadline: Deadline | None = None) -> float:
        """One batch through all layers, compared to the bit; returns the seconds it took."""
        x = self.bench.rows(self._rng, rows)
        begun = time.monotonic()
        results = [self.router.forward(layer, x, deadline) for layer in range(self.bench.layers)]
        took = time.monotonic() - begun
        for layer, result in enumerate(results):
            assert result.failed == {}
            assert result.rows.tobytes() == self.bench.local().forward(layer, x).rows.tobytes()
        return took

    def fault(self, name: str, kind: FaultKind, most: int = 0, delay_s: float = 0.0) -> None:
        faults = self.servers[name].worker.faults
        assert faults is not None
        faults.replace([FaultRule(kind, most=most, delay_s=delay_s)])

    def heal(self, name: str) -> None:
        faults = self.servers[name].worker.faults
        assert faults is not None
        faults.replace([])

    def state(self, name: str) -> HealthState:
        return self.executor.workers()[name].state


@contextmanager
def running(
    bench: MoeBench,
    workers: int = 3,
    replicas: int = 2,
    policy: FailoverPolicy = POLICY,
    link: LinkKind = LinkKind.GRPC,
    run: Callable[[int, Array, UnitBatch], tuple[F32, U32]] | None = None,
) -> Iterator[Cluster]:
    with bench.workers(workers, run=run or bench.run_units(), allow_faults=True) as servers:
        directory = Directory(membership_of(bench.spread(workers, replicas=replicas), *servers.values()))
        with bench.remote(directory, policy=policy, link=link) as (router, executor):
            assert executor.connect() == {}
            yield Cluster(bench, servers, router, executor)


class Hold:
    """Compute of one worker that waits for a word."""

    def __init__(self, bench: MoeBench) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.holding = True
        self._run = bench.run_units()

    def run(self, layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        if self.holding:
            self.begun.release()
            assert self.go.wait(20)
        return self._run(layer, x, batch)


@contextmanager
def one_holds(
    bench: MoeBench, hold: Hold, policy: FailoverPolicy = POLICY, replicas: int = 2
) -> Iterator[Cluster]:
    """Three workers, of which w1 computes only when told to."""
    with ExitStack() as stack:
        runs = {"w0": bench.run_units(), "w1": hold.run, "w2": bench.run_units()}
        servers = {name: stack.enter_context(bench.worker(name, run=run)) for name, run in runs.items()}
        stack.callback(hold.go.set)
        directory = Directory(membership_of(bench.spread(3, replicas=replicas), *servers.values()))
        router, executor = stack.enter_context(bench.remote(directory, policy=policy))
        assert executor.connect() == {}
        yield Cluster(bench, servers, router, executor)


@LINKS
def test_quiet_replicas_are_not_used(bench: MoeBench, link: LinkKind) -> None:
    with running(bench, link=link) as cluster:
        for rows in (1, 2, 33):
            cluster.step(rows)
        routing = cluster.executor.routing()
        assert (routing.failovers, routing.timeouts, routing.hedges, routing.ejections) == (0, 0, 0, 0)
        assert all(worker.state is HealthState.HEALTHY for worker in cluster.executor.workers().values())
        assert {worker.link for worker in cluster.executor.workers().values()} == {link.value}


@LINKS
@pytest.mark.parametrize("victim", ["w0", "w1", "w2"])
def test_a_connection_that_is_lost(bench: MoeBench, link: LinkKind, victim: str) -> None:
    with running(bench, link=link) as cluster:
        cluster.step()
        cluster.servers[victim].stop(0.0)
        assert cluster.step() < 2.0
        cluster.step(1)
        eventually(lambda: cluster.state(victim) is HealthState.LOST, 5.0, "the loss is known")
        # Dead for the launcher, too.
        alive = [server for name, server in cluster.servers.items() if name != victim]
        cluster.directory.publish(membership_of(cluster.bench.spread(3, replicas=2), *alive))
        cluster.step()


def test_a_connection_that_is_lost_in_the_middle_of_an_answer(bench: MoeBench) -> None:
    hold = Hold(bench)
    with one_holds(bench, hold) as cluster, ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(cluster.step) for _ in range(4)]
        assert hold.begun.acquire(timeout=10)
        threading.Thread(target=cluster.servers["w1"].stop, args=(0.0,)).start()
        for future in waiting:
            future.result(20)
        assert cluster.executor.routing().failovers >= 4


def test_a_hung_worker_does_not_hide_the_loss_of_another(bench: MoeBench) -> None:
    """w1 hangs for long; w2's loss is found out, and made good, in the same exchange."""
    hold = Hold(bench)
    policy = replace(POLICY, deadline_cold_s=0.4)
    with one_holds(bench, hold, policy, replicas=3) as cluster, ThreadPoolExecutor(1) as threads:
        step = threads.submit(cluster.step)
        assert hold.begun.acquire(timeout=10)
        cluster.servers["w2"].stop(0.0)
        assert step.result(20) < 3.0
        assert cluster.executor.routing().timeouts >= 1


def test_a_worker_that_hangs_costs_one_deadline_and_is_back_when_it_answers(bench: MoeBench) -> None:
    hold = Hold(bench)
    with one_holds(bench, hold) as cluster:
        took = cluster.step()
        assert 0.2 < took < 1.5
        assert cluster.state("w1") is HealthState.EJECTED
        cluster.step()
        routing = cluster.executor.routing()
        assert (routing.timeouts, routing.ejections) == (1, 1)  # not once per layer
        hold.holding = False
        hold.go.set()
        back = eventually(lambda: cluster.state("w1") is HealthState.HEALTHY, 5.0, "w1 is back")
        assert back < 2.5
        before = cluster.executor.workers()["w1"].rows_sent
        cluster.step()
        assert cluster.executor.workers()["w1"].rows_sent > before


@LINKS
@pytest.mark.parametrize(
    "kind", [FaultKind.CORRUPT, FaultKind.TRUNCATE, FaultKind.WRONG_SHAPE], ids=lambda kind: kind.name
)
def test_an_answer_that_is_nonsense(bench: MoeBench, link: LinkKind, kind: FaultKind) -> None:
    with running(bench, link=link) as cluster:
        cluster.step()
        cluster.fault("w1", kind, most=1)
        for _ in range(4):
            cluster.step()
        routing = cluster.executor.routing()
        assert routing.bad_replies == 1
        assert (routing.failovers >= 1, routing.ejections) == (True, 1)
        eventually(lambda: cluster.state("w1") is HealthState.HEALTHY, 5.0, "w1 is back on a new connection")
        cluster.step()


@LINKS
@pytest.mark.parametrize("kind", [FaultKind.DUPLICATE, FaultKind.LATE], ids=lambda kind: kind.name)
def test_answers_that_come_twice_or_late(bench: MoeBench, link: LinkKind, kind: FaultKind) -> None:
    with running(bench, link=link) as cluster:
        cluster.step()
        if kind is FaultKind.DUPLICATE:
            cluster.fault("w1", kind)
        else:
            cluster.fault("w1", kind, most=2, delay_s=0.6)
        for _ in range(6):
            cluster.step()
        cluster.heal("w1")
        eventually(lambda: cluster.state("w1") is HealthState.HEALTHY, 5.0, "w1 is in use")
        time.sleep(0.7 if kind is FaultKind.LATE else 0.0)
        cluster.step()
        assert cluster.executor.routing().late_replies >= 1
        assert cluster.executor.routing().bad_replies == 0


def test_a_worker_that_is_busy(bench: MoeBench) -> None:
    with running(bench) as cluster:
        cluster.fault("w1", FaultKind.BUSY, most=3)
        for _ in range(4):
            cluster.step()
        routing = cluster.executor.routing()
        assert (routing.refusals, routing.failovers >= 3) == (3, True)
        assert cluster.state("w1") is HealthState.HEALTHY


def test_a_busy_worker_without_replica_is_asked_again(bench: MoeBench) -> None:
    with running(bench, replicas=1) as cluster:
        cluster.fault("w1", FaultKind.BUSY, most=5)
        cluster.step()
        assert cluster.executor.routing().refusals == 5
        assert cluster.executor.routing().waits_for_holder == 0


def test_a_worker_that_stays_busy_ends_as_busy(bench: MoeBench) -> None:
    with running(bench, replicas=1, policy=replace(POLICY, wait_for_holder_s=0.3)) as cluster:
        cluster.fault("w1", FaultKind.BUSY)
        x = bench.rows(np.random.default_rng(3), 24)
        result = cluster.router.forward(0, x)
        assert 0 < len(result.failed) < 24
        assert all(isinstance(error, Busy) and error.peer == "w1" for error in result.failed.values())
        expected = bench.local().forward(0, x).rows
        expected[list(result.failed)] = 0
        assert result.rows.tobytes() == expected.tobytes()


def test_an_expert_that_is_not_loaded(tiny_mixtral: Path, tmp_path: Path, backend: Backend) -> None:
    bench = MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path, backend)
    with bench.workers(3) as servers:
        directory = Directory(membership_of(bench.spread(3, replicas=2), *servers.values()))
        with bench.remote(directory, policy=POLICY) as (router, executor):
            cluster = Cluster(bench, servers, router, executor)
            assert executor.connect() == {}
            servers["w1"].store.unload([(0, expert) for expert in range(bench.experts)])
            cluster.step()
            assert executor.routing().refusals >= 1


def test_a_stale_epoch(bench: MoeBench) -> None:
    """The router has not heard yet: it looks again, and goes by the newest placement; a replica helps until then."""
    with running(bench) as cluster:
        cluster.servers["w0"].worker.epochs.retire_below(5)
        cluster.step()
        assert cluster.executor.routing().refusals >= 1
        for server in cluster.servers.values():
            server.worker.epochs.retire_below(5)
        later = threading.Timer(
            0.3,
            cluster.directory.publish,
            [membership_of(bench.spread(3, 5, replicas=2), *cluster.servers.values())],
        )
        later.start()
        assert cluster.step() >= 0.2
        later.join()


@pytest.mark.parametrize("replicas", [1, 2])
def test_nobody_holds_an_expert_until_somebody_does(bench: MoeBench, replicas: int) -> None:
    """All holders of w1's experts die; a survivor gets them by a new placement."""
    with running(bench, replicas=replicas) as cluster, ThreadPoolExecutor(2) as threads:
        cluster.step()
        dead = ["w1"] if replicas == 1 else ["w1", "w2"]
        for name in dead:
            cluster.servers[name].stop(0.0)
        alive = [server for name, server in cluster.servers.items() if name not in dead]
        cluster.directory.publish(membership_of(bench.spread(3, replicas=replicas), *alive))
        steps = [threads.submit(cluster.step) for _ in range(2)]
        time.sleep(0.5)
        assert not any(step.done() for step in steps)
        moved = tuple(
            tuple((0,) if f"w{holders[0]}" in dead else holders for holders in layer)
            for layer in bench.spread(3).holders
        )
        cluster.directory.publish(membership_of(Placement(2, ("w0", "w1", "w2"), moved), *alive))
        for step in steps:
            assert step.result(10) > 0.4
        assert cluster.executor.routing().waits_for_holder >= 1
        assert cluster.directory.wait_unused(2, 5.0)


def test_a_worker_that_comes_back_serves_who_waited(bench: MoeBench) -> None:
    with running(bench, replicas=1) as cluster, ExitStack() as stack, ThreadPoolExecutor(1) as threads:
        cluster.step()
        cluster.servers["w1"].stop(0.0)
        survivors = [cluster.servers["w0"], cluster.servers["w2"]]
        cluster.directory.publish(membership_of(bench.spread(3), *survivors))
        step = threads.submit(cluster.step)
        time.sleep(0.3)
        assert not step.done()
        reborn = stack.enter_context(bench.worker("w1", incarnation=2, run=bench.run_units()))
        cluster.directory.publish(membership_of(bench.spread(3), *survivors, reborn))
        step.result(10)
        assert cluster.executor.workers()["w1"].incarnation == 2


def test_nobody_ever_holds_it(bench: MoeBench) -> None:
    """Only the rows that need it fail, with advice; while nothing changes, later ones fail at once."""
    with running(bench, replicas=1, policy=replace(POLICY, wait_for_holder_s=4.0)) as cluster:
        cluster.step()
        cluster.servers["w1"].stop(0.0)
        alive = [cluster.servers["w0"], cluster.servers["w2"]]
        cluster.directory.publish(membership_of(bench.spread(3), *alive))
        x = bench.rows(np.random.default_rng(4), 24)
        expected = bench.local().forward(0, x).rows
        begun = time.monotonic()
        result = cluster.router.forward(0, x)
        assert 3.9 < time.monotonic() - begun < 60.0
        assert 0 < len(result.failed) < 24
        for error in result.failed.values():
            assert isinstance(error, WorkerLost)
            assert (error.retryable, error.peer) == (True, "w1")
            assert error.retry_after_s is not None
            assert "w1" in error.message
        expected[list(result.failed)] = 0
        assert result.rows.tobytes() == expected.tobytes()
        begun = time.monotonic()
        assert sorted(cluster.router.forward(0, x).failed) == sorted(result.failed)
        assert time.monotonic() - begun < 3.5


def test_the_caller_s_deadline_ends_a_wait_for_a_holder(bench: MoeBench) -> None:
    with running(bench, replicas=1) as cluster:
        alive = [cluster.servers["w0"], cluster.servers["w2"]]
        cluster.directory.publish(membership_of(bench.spread(3), *alive))
        x = bench.rows(np.random.default_rng(4), 24)
        begun = time.monotonic()
        result = cluster.router.forward(0, x, Deadline.after(0.3))
        assert 0.25 < time.monotonic() - begun < 15.0
        for error in result.failed.values():
            assert isinstance(error, DeadlineExpired)
            assert error.peer == "w1"


def test_a_hedge_wins_and_the_loser_is_told(bench: MoeBench) -> None:
    """One slow answer: the other holder gives it long before, and its own is dropped when it comes."""
    policy = FailoverPolicy(deadline_floor_s=5.0, deadline_cold_s=5.0)
    with running(bench, policy=policy, link=LinkKind.SHARED_MEMORY) as cluster:
        for _ in range(40):
            cluster.step(8)
        before = cluster.executor.routing()
        cluster.fault("w1", FaultKind.SLOW, most=1, delay_s=3.0)
        slowest = max(cluster.step(8) for _ in range(3))
        after = cluster.executor.routing()
        assert slowest < 2.0
        assert after.hedges_won - before.hedges_won >= 1
        assert (after.timeouts, after.bad_replies) == (0, 0)


def test_hedges_keep_to_their_budget(bench: MoeBench) -> None:
    policy = FailoverPolicy(hedge_budget=0.05, deadline_floor_s=5.0, deadline_cold_s=5.0, hedge_floor_s=0.001)
    with running(bench, policy=policy) as cluster:
        for _ in range(60):
            cluster.step(8)
        routing = cluster.executor.routing()
        assert routing.hedges <= 0.05 * routing.messages + policy.hedge_burst


def test_a_slow_worker_is_ejected_and_comes_back(bench: MoeBench) -> None:
    """Never late enough for a deadline, and not hedged: it is out of line with the others."""
    with running(bench, policy=replace(POLICY, deadline_floor_s=5.0, deadline_cold_s=5.0)) as cluster:
        for _ in range(20):
            cluster.step(8)
        cluster.fault("w1", FaultKind.SLOW, delay_s=0.05)
        begun = time.monotonic()
        while cluster.state("w1") not in (HealthState.EJECTED, HealthState.PROBING):
            cluster.step(8)
            assert time.monotonic() - begun < 20.0
        time.sleep(1.0)
        assert cluster.state("w1") in (HealthState.EJECTED, HealthState.PROBING)
        before = cluster.executor.workers()["w1"].rows_sent
        cluster.step(8)
        assert cluster.executor.workers()["w1"].rows_sent == before
        cluster.heal("w1")
        eventually(lambda: cluster.state("w1") is HealthState.HEALTHY, 10.0, "w1 is back")


def test_the_last_holder_stays_in_use(bench: MoeBench) -> None:
    """A hung worker without replica is suspected, its units wait for it, and nothing fails when it goes on."""
    hold = Hold(bench)
    with one_holds(bench, hold, replicas=1) as cluster, ThreadPoolExecutor(1) as threads:
        step = threads.submit(cluster.step)
        eventually(lambda: cluster.state("w1") is HealthState.SUSPECT, 5.0, "w1 is suspected")
        assert not step.done()
        hold.holding = False
        hold.go.set()
        step.result(10)
        routing = cluster.executor.routing()
        assert routing.timeouts >= 1
        assert (routing.ejections, routing.failovers) == (0, 0)


def test_router_threads_beside_each_other_while_workers_fail(bench: MoeBench) -> None:
    """Eight callers, and every kind of fault in turn: all bits right."""
    with (
        running(bench, policy=FailoverPolicy(deadline_cold_s=0.3)) as cluster,
        ThreadPoolExecutor(8) as threads,
    ):
        over = threading.Event()

        def caller(seed: int) -> int:
            rng = np.random.default_rng(seed)
            steps = 0
            local = bench.local()
            while not over.is_set():
                x = bench.rows(rng, int(rng.integers(1, 12)))
                layer = int(rng.integers(bench.layers))
                result = cluster.router.forward(layer, x)
                assert result.failed == {}
                assert result.rows.tobytes() == local.forward(layer, x).rows.tobytes()
                steps += 1
            return steps

        callers = [threads.submit(caller, seed) for seed in range(8)]
        kinds = [FaultKind.CORRUPT, FaultKind.BUSY, FaultKind.DUPLICATE, FaultKind.TRUNCATE, FaultKind.LATE,
                 FaultKind.WRONG_SHAPE]  # fmt: skip
        for number, kind in enumerate(kinds):
            name = f"w{number % 3}"
            cluster.fault(name, kind, most=3, delay_s=0.4 if kind is FaultKind.LATE else 0.0)
            time.sleep(0.5)
            cluster.heal(name)
        over.set()
        assert all(future.result(30) > 3 for future in callers)
        routing = cluster.executor.routing()
        assert routing.bad_replies >= 3
        assert routing.refusals >= 1
