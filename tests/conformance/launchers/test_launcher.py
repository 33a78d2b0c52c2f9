"""What every launcher must do, whoever begins its workers' lives: here subprocesses, and actors of a real Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.cluster.machine.cpu_list import parse_cpu_list
from colibri.cluster.machine.pinning_plan import Wanted, plan_pinning
from colibri.cluster.machine.topology import discover
from colibri.cluster.placing.commands import Scale
from colibri.cluster.ray.launcher import RayLauncher
from colibri.cluster.ray.options import RayOptions, Seating, Spread
from colibri.cluster.workers.launch import LOADED, UP, LaunchOptions, WorkerState, WorkerStatus
from colibri.cluster.workers.launcher import Launcher
from colibri.cluster.workers.local import LocalLauncher
from colibri.cluster.workers.worker_process import ANYWHERE
from colibri.deadline import Deadline
from colibri.deployment.cluster import ClusterOptions
from colibri.errors import InvalidInput, WorkerLost
from colibri.generation import Tokens
from colibri.placement import Directory, spread
from tests.conftest import TINY
from tests.support.clusters import PROMPT, answer, deployed, eventually, is_alive, kill, statuses
from tests.support.ray_node import ray_node
from tests.support.tiny_engine import Answer, ask

pytestmark = pytest.mark.slow  # dozens of processes
SEATS = 3
RAY = RayOptions(spread=Spread.ANY, seating=Seating(share=True), place_s=30.0)
TOKENS = 120
#: A bound, not a measurement.
SOON_S = 30.0


@pytest.fixture(scope="module")
def node() -> Iterator[None]:
    with ray_node(SEATS):
        yield


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "ray":
        request.getfixturevalue("node")
    return str(request.param)


@pytest.fixture(scope="module")
def oracle(tiny_mixtral: Path) -> Iterator[Answer]:
    with deployed(tiny_mixtral, 0) as deployment:
        yield answer(deployment, max_tokens=TOKENS)


class Launch:
    """A launcher of either kind over the tiny model. milestones, log: what it told."""

    def __init__(
        self,
        kind: str,
        model: Path,
        folder: Path,
        workers: int = 2,
        ray: RayOptions = RAY,
        **options: object,
    ) -> None:
        self.log: list[str] = []
        self.milestones: list[str] = []
        names = [f"w{index}" for index in range(workers)]
        placement = spread(TINY.layers, TINY.experts, names)
        launch = LaunchOptions(
            model,
            "bf16",
            run_folder_parent=folder,
            insecure=kind == "ray",  # Ray's address of this machine is no loopback one
            **options,  # type: ignore[arg-type]
        )
        self.launcher: Launcher
        if kind == "ray":
            self.launcher = RayLauncher(
                launch, placement, ray, milestone=self.milestones.append, log=self.log.append
            )
        else:
            pins = plan_pinning(discover(), Wanted(workers=workers, share=True)).workers
            self.launcher = LocalLauncher(
                launch, placement, pins, milestone=self.milestones.append, log=self.log.append
            )

    def status(self, name: str) -> WorkerStatus:
        return next(status for status in self.launcher.status() if status.name == name)

    def back(self, before: WorkerStatus) -> WorkerStatus:
        """Its next life, once it serves."""
        directory = self.launcher.directory
        eventually(lambda: serves_after(directory, before), SOON_S, f"{before.name} serves again")
        return self.status(before.name)


def serves_after(directory: Directory, before: WorkerStatus) -> bool:
    endpoint = directory.current().endpoints.get(before.name)
    return endpoint is not None and endpoint.incarnation > before.incarnation


@contextlib.contextmanager
def launched(
    kind: str, model: Path, folder: Path, workers: int = 2, ray: RayOptions = RAY, **options: object
) -> Iterator[Launch]:
    launch = Launch(kind, model, folder, workers, ray, **options)
    with launch.launcher as launcher:
        launcher.start()
        yield launch


def options(kind: str) -> ClusterOptions:
    return ClusterOptions(ray=RAY, insecure=True) if kind == "ray" else ClusterOptions()


def test_receipts_equal_those_of_one_process(kind: str, tiny_mixtral: Path, oracle: Answer) -> None:
    with deployed(tiny_mixtral, 3, replicas=1, cluster=options(kind)) as deployment:
        found = answer(deployment, max_tokens=TOKENS)
        assert deployment.executor.times().messages > 0
    assert (found.ids, found.receipts) == (oracle.ids, oracle.receipts)


def test_a_kill_in_the_middle_of_an_answer(kind: str, tiny_mixtral: Path, oracle: Answer) -> None:
    with deployed(tiny_mixtral, 2, cluster=options(kind)) as deployment:
        before = statuses(deployment)[1]
        receipts: list[int] = []
        for event in deployment.engine.submit(ask(PROMPT, TOKENS)).events():
            if isinstance(event, Tokens):
                receipts += event.receipts
                if len(receipts) == 3:
                    kill(before.pid)
        assert receipts == oracle.receipts
        eventually(lambda: serves_after(deployment.directory, before), SOON_S, "w1 serves again")
        after = statuses(deployment)[1]
        assert (after.deaths, after.pid != before.pid) == (1, True)
        assert "w1" in after.last_error
        assert "SIGKILL" in after.last_error
        assert answer(deployment, max_tokens=TOKENS).receipts == oracle.receipts


def test_scale_up_and_down_while_it_answers(kind: str, tiny_mixtral: Path, oracle: Answer) -> None:
    with deployed(tiny_mixtral, 2, cluster=options(kind)) as deployment:
        assert deployment.manager is not None
        for workers in (3, 1):
            ticket = deployment.manager.submit(Scale(workers), 60.0)
            found = answer(deployment, max_tokens=TOKENS)
            assert found.receipts == oracle.receipts
            assert list(ticket.steps(60.0))
            assert len(deployment.worker_names) == workers


def test_start_tells_all_that_it_knows(kind: str, tiny_mixtral: Path, tmp_path: Path) -> None:
    with launched(kind, tiny_mixtral, tmp_path) as launch:
        assert launch.milestones == [UP, LOADED]
        assert set(launch.launcher.directory.current().endpoints) == {"w0", "w1"}
        assert set(launch.launcher.pins()) == {"w0", "w1"}
        for status in launch.launcher.status():
            assert status.state is WorkerState.SERVING
            assert is_alive(status.pid)
            assert status.experts == TINY.layers * TINY.experts // 2
            assert status.weight_bytes > 0
            assert status.deaths == 0
            assert status.target == launch.launcher.directory.current().endpoints[status.name].target


def test_workers_are_pinned_where_it_says(kind: str, tiny_mixtral: Path, tmp_path: Path) -> None:
    with launched(kind, tiny_mixtral, tmp_path) as launch:
        places = [status.pin for status in launch.launcher.status()]
        for status in launch.launcher.status():
            assert status.cpus_allowed == status.pin.cpus == allowed_cpus(status.pid)
        assert not set(places[0].cpus) & set(places[1].cpus) or all(place.oversubscribed for place in places)


def test_a_new_life_is_pinned_as_the_last(kind: str, tiny_mixtral: Path, tmp_path: Path) -> None:
    with launched(kind, tiny_mixtral, tmp_path) as launch:
        before = launch.status("w0")
        kill(before.pid)
        after = launch.back(before)
        assert after.pin.cpus == allowed_cpus(after.pid)
        assert after.pin.cpus == before.pin.cpus
        assert not set(after.pin.cpus) & set(launch.status("w1").pin.cpus) or after.pin.oversubscribed


def test_a_dead_worker_leaves_the_directory_at_once(kind: str, tiny_mixtral: Path, tmp_path: Path) -> None:
    with launched(kind, tiny_mixtral, tmp_path) as launch:
        before = launch.status("w0")
        gone = threading.Event()
        launch.launcher.publisher.listen(
            lambda: gone.set() if "w0" not in launch.launcher.directory.current().endpoints else None
        )
        kill(before.pid)
        assert gone.wait(5.0)


def test_a_worker_that_hangs_is_ended_and_started_anew(kind: str, tiny_mixtral: Path, tmp_path: Path) -> None:
    with launched(kind, tiny_mixtral, tmp_path, poll_s=0.3, hung_after_s=1.0) as launch:
        before = launch.status("w1")
        os.kill(before.pid, signal.SIGSTOP)
        after = launch.back(before)
        assert not is_alive(before.pid)
        assert "gave no status" in after.last_error


def test_incarnations_are_never_given_twice(kind: str, tiny_mixtral: Path, tmp_path: Path) -> None:
    seen: set[int] = set()
    with launched(kind, tiny_mixtral, tmp_path) as launch:
        for _ in range(2):
            before = launch.launcher.status()
            fresh = {status.incarnation for status in before}
            assert len(fresh) == 2
            assert not fresh & seen
            seen |= fresh
            for status in before:
                kill(status.pid)
            for status in before:
                launch.back(status)


def test_add_and_remove(kind: str, tiny_mixtral: Path, tmp_path: Path) -> None:
    with launched(kind, tiny_mixtral, tmp_path) as launch:
        launcher = launch.launcher
        pin = plan_pinning(discover(), Wanted(workers=1)).workers[0] if kind == "local" else ANYWHERE
        launcher.add("w2", pin)
        with pytest.raises(InvalidInput, match="a name that is free, got w2"):
            launcher.add("w2", pin)
        launcher.wait_up("w2", Deadline.after(SOON_S))
        joined = launch.status("w2")
        assert (joined.state, joined.experts) == (WorkerState.SERVING, 0)
        launcher.remove("w2")
        assert not is_alive(joined.pid)
        assert set(launcher.directory.current().endpoints) == {"w0", "w1"}
        launcher.remove("w2")
        launcher.add("w2", pin)  # its place is free again
        launcher.wait_up("w2", Deadline.after(SOON_S))
        assert launch.status("w2").incarnation > joined.incarnation


def test_close_leaves_nothing(kind: str, tiny_mixtral: Path, tmp_path: Path) -> None:
    launch = Launch(kind, tiny_mixtral, tmp_path)
    launch.launcher.start()
    pids = [status.pid for status in launch.launcher.status()]
    launch.launcher.close()
    launch.launcher.close()
    assert not any(is_alive(pid) for pid in pids)
    assert {status.state for status in launch.launcher.status()} == {WorkerState.STOPPED}
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput, match="launcher"):
        launch.launcher.spawn()


def test_close_while_workers_start(kind: str, tiny_mixtral: Path, tmp_path: Path) -> None:
    launch = Launch(kind, tiny_mixtral, tmp_path)
    launch.launcher.spawn()
    launch.launcher.close()
    assert {status.state for status in launch.launcher.status()} == {WorkerState.STOPPED}
    assert not any(is_alive(status.pid) for status in launch.launcher.status() if status.pid)


def test_a_worker_that_cannot_start_is_named_with_its_reason(kind: str, tmp_path: Path) -> None:
    launch = Launch(kind, tmp_path / "no-model-here", tmp_path, workers=1)
    with pytest.raises(WorkerLost, match=r"worker w0 .*expected a folder"):
        launch.launcher.start()
    assert list(tmp_path.iterdir()) == []


def allowed_cpus(pid: int) -> tuple[int, ...]:
    lines = (Path("/proc") / str(pid) / "status").read_text().splitlines()
    return parse_cpu_list(next(line for line in lines if line.startswith("Cpus_allowed_list")).split()[1])
