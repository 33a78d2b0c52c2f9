"""RemoteExecutor over real gRPC workers: the same bits as in this process, under any placement."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from colibri.deadline import Deadline
from colibri.errors import (
    InvalidInput,
    WorkerLost,
)
from colibri.kernels.api import F32, U32, Array, ComputeMode, UnitBatch
from colibri.kernels.factory import make_backend
from colibri.placement import Directory, Placement
from colibri.router_service.plan import LayerPlan
from colibri.transport.link import LinkKind
from tests.support.clusters import eventually
from tests.support.expert_servers import MoeBench, membership_of

ROWS = (1, 2, 33)


@pytest.fixture
def bench(tiny_mixtral: Path, tmp_path: Path) -> MoeBench:
    return MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path)


def random_placement(rng: np.random.Generator, bench: MoeBench, workers: int, epoch: int) -> Placement:
    owners = rng.integers(0, workers, (bench.layers, bench.experts)).tolist()
    holders = tuple(tuple((owner,) for owner in layer) for layer in owners)
    return Placement(epoch, tuple(f"w{index}" for index in range(workers)), holders)


@pytest.mark.parametrize(
    ("transport", "link"),
    [("unix", LinkKind.GRPC), ("tcp", LinkKind.GRPC), ("unix", LinkKind.SHARED_MEMORY)],
    ids=["unix", "tcp", "shared-memory"],
)
@pytest.mark.parametrize("mode", list(ComputeMode), ids=lambda mode: mode.value)
def test_equal_to_the_local_executor_in_any_placement(
    tiny_mixtral: Path, tmp_path: Path, mode: ComputeMode, transport: str, link: LinkKind
) -> None:
    bench = MoeBench(tiny_mixtral, mode, tmp_path)
    rng = np.random.default_rng(8)
    batches = {(layer, rows): bench.rows(rng, rows) for layer in range(bench.layers) for rows in ROWS}
    local = bench.local()
    expected = {key: local.forward(key[0], x).rows for key, x in batches.items()}
    with bench.workers(8, transport) as servers:
        directory = Directory(membership_of(bench.spread(1), *servers.values()))
        with bench.remote(directory, link=link) as (router, executor):
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
                with directory.reading() as reading, pytest.raises(InvalidInput, match="x:"):
                    executor.run(0, x, plan, reading, Deadline(), 0)


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
        eventually(lambda: not our_threads(), 10, "the threads of the first executor end")
        files = open_files()
        for _ in range(4):
            use()
        eventually(lambda: not our_threads(), 10, "the executors' threads end")
        eventually(lambda: open_files() <= files, 10, "the executors' sockets are closed")


def our_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("link", "colibri-directory"))]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


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
