"""LocalLauncher with real workers: the same answers as in one process, pinning as planned, nothing left
behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.cluster.machine.cpu_list import parse_cpu_list
from colibri.cluster.machine.pinning_plan import Wanted, plan_workers
from colibri.cluster.machine.topology import discover
from colibri.cluster.workers.launch import LaunchOptions, WorkerState, start_timeout_s
from colibri.cluster.workers.local import LocalLauncher
from colibri.deployment.assemble import assemble
from colibri.deployment.describe import describe
from colibri.deployment.options import DeploymentOptions
from colibri.deployment.pinning import PinningOptions
from colibri.errors import ColibriError, DeadlineExpired, InvalidInput, WorkerLost
from colibri.placement import spread
from colibri.transport.link import LinkKind
from tests.conftest import TINY
from tests.support.clusters import answer, deployed, eventually, is_alive, kill, statuses
from tests.support.tiny_engine import Answer

WORKERS_BEYOND_CPUS = len(discover().cpus) + 1


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def oracle(tiny_mixtral: Path, mode: str) -> Iterator[Answer]:
    """The answer of `--workers 0`."""
    with deployed(tiny_mixtral, 0, compute_mode=mode) as deployment:
        yield answer(deployment)


@pytest.mark.parametrize(
    ("workers", "transport", "link"),
    [
        (1, "unix", LinkKind.GRPC),
        (2, "tcp", LinkKind.GRPC),
        (3, "unix", LinkKind.GRPC),
        (3, "unix", LinkKind.SHARED_MEMORY),
    ],
)
def test_receipts_equal_those_of_one_process(
    tiny_mixtral: Path, mode: str, oracle: Answer, workers: int, transport: str, link: LinkKind
) -> None:
    with deployed(tiny_mixtral, workers, transport=transport, link=link, compute_mode=mode) as deployment:
        found = answer(deployment)
        assert deployment.executor.times().messages > 0
    assert len(found.ids) == 16
    assert found.ids == oracle.ids
    assert found.receipts == oracle.receipts


def test_pinning_is_read_back_and_disjoint(tiny_mixtral: Path) -> None:
    workers = min(2, len(discover().cpus))
    with deployed(tiny_mixtral, workers) as deployment:
        seen: set[int] = set()
        for status in statuses(deployment):
            assert status.cpus_allowed == status.pin.cpus == allowed_cpus(status.pid)
            assert not seen & set(status.cpus_allowed)
            seen |= set(status.cpus_allowed)
            assert not status.oversubscribed
            assert status.experts == len(deployment.directory.current().placement.experts_of(0))
            assert status.weight_bytes > 0
        assert not any("OVERSUBSCRIBED" in line for line in describe(deployment))


def test_more_workers_than_cpus_are_reported(tiny_mixtral: Path) -> None:
    log: list[str] = []
    with deployed(tiny_mixtral, WORKERS_BEYOND_CPUS, log=log.append) as deployment:
        assert any(status.oversubscribed for status in statuses(deployment))
        assert all(status.cpus_allowed == allowed_cpus(status.pid) for status in statuses(deployment))
        assert sum("OVERSUBSCRIBED" in line for line in describe(deployment)) >= 2
    assert any("OVERSUBSCRIBED" in line for line in log)


def allowed_cpus(pid: int) -> tuple[int, ...]:
    lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
    return parse_cpu_list(next(line for line in lines if line.startswith("Cpus_allowed_list")).split()[1])


class Launch:
    """A launcher over the tiny model with its own folder for sockets."""

    def __init__(self, model: Path, folder: Path, workers: int = 2, **options: object) -> None:
        self.folder = folder
        self.log: list[str] = []
        placement = spread(TINY.layers, TINY.experts, [f"w{i}" for i in range(workers)])
        pins = plan_workers(discover(), Wanted(workers, share=True))
        launch = LaunchOptions(model, "bf16", run_folder_parent=folder, **options)  # type: ignore[arg-type]
        self.launcher = LocalLauncher(launch, placement, pins, log=self.log.append)

    def pids(self) -> list[int]:
        return [status.pid for status in self.launcher.status()]

    def check_nothing_left(self, pids: list[int]) -> None:
        assert not any(is_alive(pid) for pid in pids)
        assert list(self.folder.iterdir()) == []
        assert {status.state for status in self.launcher.status()} == {WorkerState.STOPPED}


def test_close_leaves_nothing(tiny_mixtral: Path, tmp_path: Path) -> None:
    launch = Launch(tiny_mixtral, tmp_path)
    directory = launch.launcher.start()
    pids = launch.pids()
    assert set(directory.current().endpoints) == {"w0", "w1"}
    assert len(list(tmp_path.glob("*/*.sock"))) == 2
    launch.launcher.close()
    launch.launcher.close()
    launch.check_nothing_left(pids)


def test_close_leaves_nothing_of_killed_workers(tiny_mixtral: Path, tmp_path: Path) -> None:
    launch = Launch(tiny_mixtral, tmp_path, backoff_s=60.0)
    launch.launcher.start()
    pids = launch.pids()
    for pid in pids:
        kill(pid)
    begun = time.monotonic()
    launch.launcher.close()
    assert time.monotonic() - begun < 10.0
    launch.check_nothing_left(pids)


def test_close_while_workers_start(tiny_mixtral: Path, tmp_path: Path) -> None:
    launch = Launch(tiny_mixtral, tmp_path)
    launch.launcher.spawn()
    eventually(lambda: all(launch.pids()), 10.0, "both are spawned")
    pids = launch.pids()
    launch.launcher.close()
    launch.check_nothing_left(pids)


def test_a_launcher_starts_once(tiny_mixtral: Path, tmp_path: Path) -> None:
    launch = Launch(tiny_mixtral, tmp_path)
    with launch.launcher:
        launch.launcher.start()
        with pytest.raises(InvalidInput, match="launcher"):
            launch.launcher.spawn()


def test_a_worker_that_cannot_start_is_named_with_its_reason(tmp_path: Path) -> None:
    launch = Launch(tmp_path / "no-model-here", tmp_path, workers=1)
    with pytest.raises(
        WorkerLost, match=r"worker w0 .* exited with code 1 before it was ready.*no-model-here"
    ) as caught:
        launch.launcher.start()
    assert caught.value.peer == "w0"
    launch.check_nothing_left(launch.pids())


def test_a_fault_in_a_callback_does_not_leave_start_waiting(tiny_mixtral: Path, tmp_path: Path) -> None:
    def fail(worker: str, done: int, total: int, nbytes: int) -> None:
        raise ValueError("of the caller")

    launch = Launch(tiny_mixtral, tmp_path, workers=1)
    launch.launcher._progress = fail
    with pytest.raises(ColibriError, match=r"worker w0 .*of the caller"):
        launch.launcher.start()
    launch.check_nothing_left(launch.pids())


def test_a_worker_that_is_not_ready_in_time_is_named(tiny_mixtral: Path, tmp_path: Path) -> None:
    launch = Launch(tiny_mixtral, tmp_path, workers=1, ready_timeout_s=0.01)
    with pytest.raises(DeadlineExpired, match="worker w0"):
        launch.launcher.start()
    launch.check_nothing_left(launch.pids())


def test_threads_and_files_do_not_grow_with_restarts(tiny_mixtral: Path, tmp_path: Path) -> None:
    launch = Launch(tiny_mixtral, tmp_path, workers=1, backoff_s=0.01, backoff_max_s=0.01)
    with launch.launcher:
        directory = launch.launcher.start()
        counts = []
        for _ in range(3):
            before = directory.current()
            kill(launch.pids()[0])
            eventually(lambda: "w0" not in directory.current().endpoints, 1.0, "its endpoint is gone")
            eventually(lambda: "w0" in directory.current().endpoints, 30.0, "it is back")
            after = directory.current()
            assert after.endpoints["w0"].incarnation > before.endpoints["w0"].incarnation
            assert len(list(tmp_path.glob("*/*.sock"))) == 1
            counts.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))
        # A connection that is being made or closed has threads and files for a moment.
        threads, files = counts[0]
        eventually(lambda: threading.active_count() <= threads, 10.0, f"{threads} threads or fewer")
        eventually(lambda: len(os.listdir("/proc/self/fd")) <= files, 10.0, f"{files} files or fewer")
        assert launch.launcher.status()[0].deaths == 3


def test_the_time_of_a_start_is_an_option(tiny_mixtral: Path) -> None:
    options = DeploymentOptions(
        tiny_mixtral, workers=1, start_timeout_s=0.01, pinning=PinningOptions(share=True)
    )
    with pytest.raises(DeadlineExpired, match=r"w0 .* not ready within 0\.01 s; .* --start-timeout"):
        assemble(options, print)


def test_more_workers_have_more_time() -> None:
    assert start_timeout_s(1) < start_timeout_s(16) == 220
