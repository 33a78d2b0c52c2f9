"""RemoteExecutor over real gRPC workers: the same bits as in this process under any placement; whatever
goes wrong with one worker has a bound, a name and no effect on rows of others."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from colibri.deadline import Deadline
from colibri.errors import (
    Busy,
    ColibriError,
    DeadlineExpired,
    ExpertNotLoaded,
    InvalidInput,
    NumericsMismatch,
    StaleEpoch,
    WorkerLost,
)
from colibri.expert_service.assembly import WorkerServer
from colibri.kernels.api import F32, U32, Array, ComputeMode, UnitBatch
from colibri.kernels.factory import make_backend
from colibri.placement import Directory, Membership, Placement, WorkerEndpoint
from colibri.router_service.plan import LayerPlan
from colibri.router_service.router import MoeResult, MoeRouter
from colibri.rpc.server import Service, build_server
from colibri.v1 import expert_pb2, expert_pb2_grpc
from tests.support.expert_servers import MoeBench, membership_of

ROWS = (1, 2, 33)


@pytest.fixture
def bench(tiny_mixtral: Path, tmp_path: Path) -> MoeBench:
    return MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path)


def random_placement(rng: np.random.Generator, bench: MoeBench, workers: int, epoch: int) -> Placement:
    owners = rng.integers(0, workers, (bench.layers, bench.experts)).tolist()
    holders = tuple(tuple((owner,) for owner in layer) for layer in owners)
    return Placement(epoch, tuple(f"w{index}" for index in range(workers)), holders)


@pytest.mark.parametrize("transport", ["unix", "tcp"])
@pytest.mark.parametrize("mode", list(ComputeMode), ids=lambda mode: mode.value)
def test_equal_to_the_local_executor_in_any_placement(
    tiny_mixtral: Path, tmp_path: Path, mode: ComputeMode, transport: str
) -> None:
    bench = MoeBench(tiny_mixtral, mode, tmp_path)
    rng = np.random.default_rng(8)
    batches = {(layer, rows): bench.rows(rng, rows) for layer in range(bench.layers) for rows in ROWS}
    local = bench.local()
    expected = {key: local.forward(key[0], x).rows for key, x in batches.items()}
    with bench.workers(8, transport) as servers:
        directory = Directory(membership_of(bench.spread(1), *servers.values()))
        with bench.remote(directory) as (router, executor):
            assert executor.connect() == {}
            epoch = 1
            for workers in (1, 2, 3, 8):
                placements = [bench.spread(workers, epoch + 1)]
                placements += [random_placement(rng, bench, workers, epoch + 2 + n) for n in range(2)]
                for placement in placements:
                    epoch = placement.epoch
                    directory.publish(membership_of(placement, *servers.values()))
                    for key, x in batches.items():
                        result = router.forward(key[0], x)
                        assert result.failed == {}
                        assert result.epoch == epoch
                        assert np.array_equal(result.rows, expected[key]), (workers, key)


def test_equal_with_the_cpu_backend(tiny_mixtral: Path, tmp_path: Path) -> None:
    backend = make_backend("cpu", threads=2)
    try:
        bench = MoeBench(tiny_mixtral, ComputeMode.BF16, tmp_path, backend)
        x = bench.rows(np.random.default_rng(1), 40)
        with bench.workers(3, run=bench.run_units()) as servers:
            directory = Directory(membership_of(bench.spread(3), *servers.values()))
            with bench.remote(directory) as (router, _):
                for layer in range(bench.layers):
                    expected = bench.local().forward(layer, x).rows
                    assert np.array_equal(router.forward(layer, x).rows, expected)
                    alone = router.forward(layer, x[7:8]).rows
                    assert np.array_equal(alone, expected[7:8])
    finally:
        backend.close()


def test_messages_of_several_chunks(tiny_mixtral: Path, tmp_path: Path) -> None:
    bench = MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path, make_backend("cpu", threads=1), max_rows=6000)
    try:
        x = bench.rows(np.random.default_rng(2), 6000)
        assert x.nbytes > 1 << 20
        with bench.workers(2, run=bench.run_units()) as servers:
            directory = Directory(membership_of(bench.spread(2), *servers.values()))
            with bench.remote(directory) as (router, _), ThreadPoolExecutor(4) as threads:
                expected = bench.local().forward(1, x).rows
                small = [threads.submit(router.forward, 1, x[n : n + 1]) for n in range(40)]
                big = [threads.submit(router.forward, 1, x) for _ in range(2)]
                for future in big:
                    assert np.array_equal(future.result(60).rows, expected)
                for n, future in enumerate(small):
                    assert np.array_equal(future.result(60).rows, expected[n : n + 1])
    finally:
        bench.backend.close()


def test_more_rows_than_a_message_holds(tiny_mixtral: Path, tmp_path: Path) -> None:
    bench = MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path, max_rows=16)
    x = bench.rows(np.random.default_rng(3), 50)
    with bench.workers(2) as servers:
        directory = Directory(membership_of(bench.spread(2), *servers.values()))
        with bench.remote(directory) as (router, _):
            result = router.forward(0, x)
            assert result.failed == {}
            assert np.array_equal(result.rows, bench.local().forward(0, x).rows)


def test_many_threads_at_once(bench: MoeBench) -> None:
    rng = np.random.default_rng(4)
    batches = [
        (int(rng.integers(bench.layers)), bench.rows(rng, int(rng.integers(1, 9)))) for _ in range(120)
    ]
    local = bench.local()
    expected = [local.forward(layer, x).rows for layer, x in batches]
    with bench.workers(3) as servers:
        directory = Directory(membership_of(bench.spread(3), *servers.values()))
        with bench.remote(directory) as (router, executor), ThreadPoolExecutor(8) as threads:
            results = list(threads.map(lambda batch: router.forward(*batch), batches, timeout=60))
            for result, rows in zip(results, expected, strict=True):
                assert result.failed == {}
                assert np.array_equal(result.rows, rows)
            times = executor.times()
            assert times.exchanges == 120
            assert times.failed_messages == times.late_replies == 0


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


def test_all_are_written_before_any_is_read(bench: MoeBench) -> None:
    """No worker answers before all have begun."""
    together = threading.Barrier(3)
    compute = bench.run_units()

    def run(layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        together.wait(10)
        return compute(layer, x, batch)

    x = bench.rows(np.random.default_rng(5), 30)
    with bench.workers(3, run=run) as servers:
        directory = Directory(membership_of(bench.spread(3), *servers.values()))
        with bench.remote(directory) as (router, _):
            for layer in range(bench.layers):
                result = router.forward(layer, x)
                assert result.failed == {}
                assert np.array_equal(result.rows, bench.local().forward(layer, x).rows)


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
        with bench.remote(directory) as (router, _):
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
        with bench.remote(directory) as (router, _):
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
        with bench.remote(directory) as (router, _):
            waiting = [threads.submit(router.forward, 0, x)]
            assert gate.begun.acquire(timeout=10)
            waiting += [threads.submit(router.forward, 0, x) for _ in range(6)]
            time.sleep(0.3)  # all have been sent
            gate.go.set()
            results = [future.result(10) for future in waiting]
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
            assert 0.15 < time.monotonic() - start < 2
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
        with bench.remote(directory, wait_s=0.3) as (router, _):
            start = time.monotonic()
            result = router.forward(0, x)
            assert time.monotonic() - start < 3
            for error in only_rows_of(bench, router, 0, x, result, 1):
                assert isinstance(error, WorkerLost)
                assert error.peer == "w1"
                assert "0.3 s" in error.message
            gate.go.set()


def test_a_lost_worker_fails_its_rows_at_once_and_its_next_life_serves(bench: MoeBench) -> None:
    gate = Gate(bench)
    x = bench.rows(np.random.default_rng(11), 24)
    with ExitStack() as stack, ThreadPoolExecutor(4) as threads:
        w0 = stack.enter_context(bench.worker("w0"))
        w1 = stack.enter_context(bench.worker("w1", run=gate.run))
        directory = Directory(membership_of(bench.spread(2), w0, w1))
        router, executor = stack.enter_context(bench.remote(directory))
        waiting = [threads.submit(router.forward, 0, x) for _ in range(3)]
        assert gate.begun.acquire(timeout=10)
        time.sleep(0.1)
        lost_at = time.monotonic()
        threading.Thread(target=w1.stop, args=(0.0,)).start()
        results = [future.result(10) for future in waiting]
        assert time.monotonic() - lost_at < 1.0
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
        with bench.remote(directory) as (router, _):
            waiting = threads.submit(router.forward, 0, x)
            assert gate.begun.acquire(timeout=10)
            directory.publish(membership_of(bench.spread(2), w0))
            start = time.monotonic()
            result = waiting.result(10)
            assert time.monotonic() - start < 1.0
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


@pytest.mark.parametrize("field", ["model_hash", "expert_numerics_id"])
def test_a_mismatch_is_refused_with_both_values(bench: MoeBench, field: str) -> None:
    x = bench.rows(np.random.default_rng(14), 2)
    with bench.workers(1) as servers:
        directory = Directory(membership_of(bench.spread(1), *servers.values()))
        mine = bench.identity()
        own = getattr(mine, field)
        if field == "model_hash":
            other = replace(mine, model_hash="another")
        else:
            other = replace(mine, expert_numerics_id="another")
        with bench.remote(directory, identity=other) as (router, executor):
            errors = [executor.connect()["w0"], *router.forward(0, x).failed.values()]
            assert len(errors) == 3
            for error in errors:
                assert isinstance(error, NumericsMismatch)
                assert (error.peer, error.retryable) == ("w0", False)
                assert "another" in error.message
                assert own in error.message


def test_another_life_at_the_address(bench: MoeBench) -> None:
    x = bench.rows(np.random.default_rng(15), 2)
    with bench.worker("w0", incarnation=7) as server:
        endpoint = WorkerEndpoint("w0", 6, server.target)
        directory = Directory(Membership(bench.spread(1), {"w0": endpoint}))
        with bench.remote(directory) as (router, _):
            for error in router.forward(0, x).failed.values():
                assert isinstance(error, WorkerLost)
                assert "expected w0, incarnation 6" in error.message
                assert "got w0, incarnation 7" in error.message


class Sloppy(expert_pb2_grpc.ExpertServicer):
    """A worker that shakes any hand and says what it is told to."""

    def __init__(self, reply: expert_pb2.HandshakeReply) -> None:
        self._reply = reply

    def Handshake(
        self, request: expert_pb2.HandshakeRequest, context: grpc.ServicerContext
    ) -> expert_pb2.HandshakeReply:
        return self._reply


@pytest.mark.parametrize(
    ("changes", "kind", "expected"),
    [
        ({"model_hash": "mine"}, NumericsMismatch, "model_hash: expected '{model_hash}'"),
        ({"expert_numerics_id": "mine"}, NumericsMismatch, "numerics_id: expected '{expert_numerics_id}'"),
        ({"pack_hash": "mine"}, NumericsMismatch, "pack_hash: expected ''"),
        ({"protocol": 9}, NumericsMismatch, "protocol: expected 1 to 1 (router), got 9 (worker)"),
        ({"worker": "w1"}, WorkerLost, "got w1, incarnation 1"),
        ({"incarnation": 2}, WorkerLost, "got w0, incarnation 2"),
    ],
)
def test_the_router_compares_for_itself(
    bench: MoeBench, changes: dict[str, Any], kind: type[ColibriError], expected: str
) -> None:
    mine = bench.identity()
    reply = expert_pb2.HandshakeReply(
        protocol=1,
        worker="w0",
        incarnation=1,
        model_hash=mine.model_hash,
        expert_numerics_id=mine.expert_numerics_id,
        max_rows=8,
    )
    reply.MergeFrom(expert_pb2.HandshakeReply(**changes))
    servicer = Sloppy(reply)  # type: ignore[abstract]  # its other methods answer UNIMPLEMENTED
    service = Service("colibri.v1.Expert", partial(expert_pb2_grpc.add_ExpertServicer_to_server, servicer))
    server = build_server([service], listen=f"unix:{bench.folder}/sloppy")
    server.start()
    try:
        endpoint = WorkerEndpoint("w0", 1, server.target)
        directory = Directory(Membership(bench.spread(1), {"w0": endpoint}))
        with bench.remote(directory) as (_, executor):
            error = executor.connect()["w0"]
            assert isinstance(error, kind)
            assert error.peer == "w0"
            assert expected.format(**asdict(mine)) in error.message
    finally:
        server.stop(0)


def test_no_common_protocol(bench: MoeBench) -> None:
    with bench.workers(1) as servers:
        directory = Directory(membership_of(bench.spread(1), *servers.values()))
        other = replace(bench.identity(), protocol_min=2, protocol_max=3)
        with bench.remote(directory, identity=other) as (_, executor):
            error = executor.connect()["w0"]
            assert isinstance(error, NumericsMismatch)
            assert "2 to 3" in error.message


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address where connections are accepted and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_nobody_listens_or_nobody_answers(bench: MoeBench, deaf: str) -> None:
    x = bench.rows(np.random.default_rng(16), 2)
    for target, within in ((f"unix:{bench.folder}/nobody", 1.0), ("127.0.0.1:1", 1.0), (deaf, 2.0)):
        directory = Directory(Membership(bench.spread(1), {"w0": WorkerEndpoint("w0", 1, target)}))
        with bench.remote(directory, connect_s=0.5) as (router, _):
            start = time.monotonic()
            result = router.forward(0, x)
            assert time.monotonic() - start < within
            assert sorted(result.failed) == [0, 1]
            for error in result.failed.values():
                assert isinstance(error, WorkerLost)
                assert (error.peer, error.retryable) == ("w0", True)
                assert "w0" in error.message
            start = time.monotonic()
            assert len(router.forward(0, x).failed) == 2  # still refused: not tried again yet
            assert time.monotonic() - start < 0.2


def test_the_caller_s_deadline_bounds_a_connection(bench: MoeBench, deaf: str) -> None:
    x = bench.rows(np.random.default_rng(16), 1)
    directory = Directory(Membership(bench.spread(1), {}))
    with bench.remote(directory, connect_s=2.0) as (router, _):
        directory.publish(Membership(bench.spread(1), {"w0": WorkerEndpoint("w0", 1, deaf)}))
        start = time.monotonic()
        result = router.forward(0, x, Deadline.after(0.3))
        assert 0.2 < time.monotonic() - start < 1.5
        assert isinstance(result.failed[0], DeadlineExpired)
        assert result.failed[0].peer == "w0"


def test_rows_that_do_not_fit_the_limits(bench: MoeBench) -> None:
    with bench.workers(1) as servers:
        directory = Directory(membership_of(bench.spread(1), *servers.values()))
        empty = np.zeros(0, dtype=np.uint32)
        plan = LayerPlan((), empty, empty, np.zeros(2, dtype=np.uint32))
        with bench.remote(directory) as (_, executor):
            for x in (
                np.zeros((1, bench.hidden), np.uint16),
                np.zeros((1, bench.hidden + 1), np.float32),
                np.zeros((2, 2 * bench.hidden), np.float32)[:, ::2],
            ):
                with pytest.raises(InvalidInput, match="x:"):
                    executor.run(0, x, plan, directory.current(), Deadline(), 0)


def test_nothing_is_left_after_closing(bench: MoeBench) -> None:
    x = bench.rows(np.random.default_rng(17), 8)
    with bench.workers(3, "tcp") as servers:
        directory = Directory(membership_of(bench.spread(3), *servers.values()))

        def use() -> None:
            with bench.remote(directory) as (router, executor):
                assert router.forward(0, x).failed == {}
            executor.close()
            with pytest.raises(WorkerLost, match="closed"):
                raise router.forward(0, x).failed[0]

        use()  # grpc's own lasting threads and files
        threads, files = _settled(servers)
        for _ in range(4):
            use()
        assert _settled(servers, threads, files) == (threads, files)


def _settled(servers: dict[str, WorkerServer], threads: int = 0, files: int = 0) -> tuple[int, int]:
    """Threads of ours and open files, once the other ends have noticed."""
    until = time.monotonic() + 5
    while True:
        ours = [t.name for t in threading.enumerate() if t.name.startswith(("link", "colibri-directory"))]
        now = len(ours), len(os.listdir("/proc/self/fd"))
        if now <= (threads, files) or time.monotonic() > until:
            return now
        if not threads and not files and time.monotonic() > until - 4:
            return now
        time.sleep(0.05)


def test_times_tell_where_it_went(bench: MoeBench) -> None:
    compute = bench.run_units()

    def slow(layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        time.sleep(0.05)
        return compute(layer, x, batch)

    x = bench.rows(np.random.default_rng(18), 3)
    with bench.workers(1, run=slow) as servers:
        directory = Directory(membership_of(bench.spread(1), *servers.values()))
        with bench.remote(directory) as (router, executor):
            for _ in range(3):
                assert router.forward(0, x).failed == {}
            times = executor.times()
            assert (times.exchanges, times.messages, times.failed_messages) == (3, 3, 0)
            assert times.bytes_sent == 3 * x.nbytes
            assert times.bytes_received == 3 * 3 * bench.hidden * 4
            assert 0.15 <= times.worker_compute_s <= times.wait_s
            assert times.write_s > 0
            assert router.times().exchange_s >= times.wait_s
