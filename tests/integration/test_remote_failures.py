"""What goes wrong with one worker has a bound, a name and no effect on the rows of others: here without failover, so
that each failure shows as it is."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colibri.deadline import Deadline
from colibri.errors import (
    Busy,
    ColibriError,
    DeadlineExpired,
    ExpertNotLoaded,
    StaleEpoch,
    WorkerLost,
)
from colibri.kernels.api import F32, U32, Array, ComputeMode, UnitBatch
from colibri.placement import Directory
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.router import MoeResult, MoeRouter
from tests.support.expert_servers import MoeBench, membership_of

OFF = FailoverPolicy(failover=False, hedge=False)


@pytest.fixture
def bench(tiny_mixtral: Path, tmp_path: Path) -> MoeBench:
    return MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path)


class Gate:
    """Compute that waits: for others to begin, or for a word."""

    def __init__(self, bench: MoeBench) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self._run = bench.run_units()

    def run(self, layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        self.begun.release()
        assert self.go.wait(20)
        return self._run(layer, x, batch)


def only_rows_of(
    bench: MoeBench, router: MoeRouter, layer: int, x: Array, result: MoeResult, worker: int
) -> list[ColibriError]:
    """Checks that exactly the rows with units on `worker` failed, and that all others are right."""
    placement = router.directory.current().placement
    touched = (placement.owner(layer)[router.gate(layer, x).experts] == worker).any(axis=1)
    assert 0 < touched.sum() < len(x)
    assert sorted(result.failed) == np.flatnonzero(touched).tolist()
    expected = bench.local().forward(layer, x).rows
    expected[touched] = 0
    assert np.array_equal(result.rows, expected)
    return list(result.failed.values())


def test_an_expert_that_is_not_loaded(bench: MoeBench) -> None:
    x = bench.rows(np.random.default_rng(6), 24)
    with bench.workers(2) as servers:
        directory = Directory(membership_of(bench.spread(2), *servers.values()))
        with bench.remote(directory, policy=OFF) as (router, _):
            servers["w1"].store.unload([(0, expert) for expert in range(bench.experts)])
            for error in only_rows_of(bench, router, 0, x, router.forward(0, x), 1):
                assert isinstance(error, ExpertNotLoaded)
                assert (error.peer, error.retryable) == ("w1", True)
                assert "w1" in error.message
            assert router.forward(1, x).failed == {}


def test_a_stale_epoch(bench: MoeBench) -> None:
    x = bench.rows(np.random.default_rng(7), 24)
    with bench.workers(2) as servers:
        directory = Directory(membership_of(bench.spread(2), *servers.values()))
        with bench.remote(directory, policy=OFF) as (router, _):
            assert router.forward(0, x).failed == {}
            servers["w0"].worker.epochs.retire_below(5)
            for error in only_rows_of(bench, router, 0, x, router.forward(0, x), 0):
                assert isinstance(error, StaleEpoch)
                assert (error.peer, error.retryable) == ("w0", True)
            directory.publish(membership_of(bench.spread(2, epoch=5), *servers.values()))
            assert router.forward(0, x).failed == {}


def test_a_full_queue(bench: MoeBench) -> None:
    gate = Gate(bench)
    x = bench.rows(np.random.default_rng(8), 1)
    with bench.worker("w0", run=gate.run, max_queued=1) as server, ThreadPoolExecutor(8) as threads:
        directory = Directory(membership_of(bench.spread(1), server))
        with bench.remote(directory, policy=OFF) as (router, _):
            waiting = [threads.submit(router.forward, 0, x)]
            assert gate.begun.acquire(timeout=10)
            waiting += [threads.submit(router.forward, 0, x) for _ in range(6)]
            time.sleep(0.3)  # all have been sent
            gate.go.set()
            results = [future.result(30) for future in waiting]
    errors = [result.failed[0] for result in results if result.failed]
    assert len(errors) == 5
    for error in errors:
        assert isinstance(error, Busy)
        assert (error.peer, error.retryable) == ("w0", True)
        assert error.retry_after_s is not None
        assert error.retry_after_s > 0
    expected = bench.local().forward(0, x).rows
    assert all(np.array_equal(result.rows, expected) for result in results if not result.failed)


def test_a_deadline_ends_the_wait_and_the_late_answer_is_dropped(bench: MoeBench) -> None:
    gate = Gate(bench)
    x = bench.rows(np.random.default_rng(9), 4)
    with bench.worker("w0", run=gate.run) as server:
        directory = Directory(membership_of(bench.spread(1), server))
        with bench.remote(directory) as (router, executor):
            assert executor.connect() == {}
            start = time.monotonic()
            result = router.forward(0, x, Deadline.after(0.2))
            assert 0.15 < time.monotonic() - start < 30
            assert sorted(result.failed) == [0, 1, 2, 3]
            for error in result.failed.values():
                assert isinstance(error, DeadlineExpired)
                assert error.peer == "w0"
            assert not result.rows.any()
            gate.go.set()
            again = router.forward(0, x)
            assert np.array_equal(again.rows, bench.local().forward(0, x).rows)
            assert executor.times().late_replies == 1


def test_a_deadline_that_has_passed(bench: MoeBench) -> None:
    x = bench.rows(np.random.default_rng(9), 2)
    with bench.workers(1) as servers:
        directory = Directory(membership_of(bench.spread(1), *servers.values()))
        with bench.remote(directory) as (router, _):
            result = router.forward(0, x, Deadline.after(-1.0))
            assert all(isinstance(error, DeadlineExpired) for error in result.failed.values())
            assert len(result.failed) == 2
            assert servers["w0"].worker.counters.counts.done == 0
            assert router.forward(0, x).failed == {}


def test_a_worker_that_hangs_without_a_deadline(bench: MoeBench) -> None:
    gate = Gate(bench)
    x = bench.rows(np.random.default_rng(10), 24)
    with bench.worker("w0") as w0, bench.worker("w1", run=gate.run) as w1:
        directory = Directory(membership_of(bench.spread(2), w0, w1))
        with bench.remote(directory, policy=replace(OFF, deadline_ceiling_s=0.3)) as (router, _):
            start = time.monotonic()
            result = router.forward(0, x)
            assert time.monotonic() - start < 30
            for error in only_rows_of(bench, router, 0, x, result, 1):
                assert isinstance(error, WorkerLost)
                assert error.peer == "w1"
                assert "no answer within" in error.message
            gate.go.set()


def test_a_lost_worker_fails_its_rows_at_once_and_its_next_life_serves(bench: MoeBench) -> None:
    gate = Gate(bench)
    x = bench.rows(np.random.default_rng(11), 24)
    with ExitStack() as stack, ThreadPoolExecutor(4) as threads:
        w0 = stack.enter_context(bench.worker("w0"))
        w1 = stack.enter_context(bench.worker("w1", run=gate.run))
        directory = Directory(membership_of(bench.spread(2), w0, w1))
        router, executor = stack.enter_context(bench.remote(directory, policy=OFF))
        waiting = [threads.submit(router.forward, 0, x) for _ in range(3)]
        assert gate.begun.acquire(timeout=10)
        time.sleep(0.1)
        lost_at = time.monotonic()
        threading.Thread(target=w1.stop, args=(0.0,)).start()
        results = [future.result(30) for future in waiting]
        assert time.monotonic() - lost_at < 30.0
        gate.go.set()
        for result in results:
            for error in only_rows_of(bench, router, 0, x, result, 1):
                assert isinstance(error, WorkerLost)
                assert (error.peer, error.retryable) == ("w1", True)

        old = directory.current()
        reborn = stack.enter_context(bench.worker("w1", incarnation=2))
        directory.publish(membership_of(bench.spread(2), w0, reborn))
        result = router.forward(0, x)
        assert result.failed == {}
        assert np.array_equal(result.rows, bench.local().forward(0, x).rows)
        # A caller that still holds the old snapshot is told, and does not disturb the new life.
        stale = bench.router(Directory(old), executor)
        for error in stale.forward(0, x).failed.values():
            assert isinstance(error, WorkerLost)
            assert "incarnation 1" in error.message
        assert router.forward(0, x).failed == {}


def test_a_worker_that_leaves_the_directory_fails_whoever_waits_for_it(bench: MoeBench) -> None:
    gate = Gate(bench)
    x = bench.rows(np.random.default_rng(12), 24)
    with bench.worker("w0") as w0, bench.worker("w1", run=gate.run) as w1, ThreadPoolExecutor(1) as threads:
        directory = Directory(membership_of(bench.spread(2), w0, w1))
        with bench.remote(directory, policy=OFF) as (router, _):
            waiting = threads.submit(router.forward, 0, x)
            assert gate.begun.acquire(timeout=10)
            directory.publish(membership_of(bench.spread(2), w0))
            start = time.monotonic()
            result = waiting.result(30)
            assert time.monotonic() - start < 30.0
            for error in only_rows_of(bench, router, 0, x, result, 1):
                assert isinstance(error, WorkerLost)
                assert "w1" in error.message
            for error in only_rows_of(bench, router, 0, x, router.forward(0, x), 1):
                assert isinstance(error, WorkerLost)
                assert "not alive" in error.message
            gate.go.set()


def test_a_stream_that_died_while_idle_is_opened_again(bench: MoeBench) -> None:
    x = bench.rows(np.random.default_rng(13), 5)
    listen = f"unix:{bench.folder}/again"
    expected = bench.local().forward(0, x).rows
    with ExitStack() as first, bench.worker("w0", listen=listen) as server:
        directory = Directory(membership_of(bench.spread(1), server))
        router, _ = first.enter_context(bench.remote(directory))
        assert np.array_equal(router.forward(0, x).rows, expected)
        server.stop(0.0)
        with bench.worker("w0", listen=listen):
            time.sleep(0.2)  # the stream's end has arrived
            result = router.forward(0, x)
            assert result.failed == {}
            assert np.array_equal(result.rows, expected)
