"""Workers of a launcher over their lives: who joins, who leaves, who hangs, and where they may run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from colibri.cluster.machine.netns import NetworkPlace
from colibri.cluster.machine.pinning_plan import Wanted, plan_workers
from colibri.cluster.machine.topology import discover
from colibri.cluster.workers.launch import LaunchOptions, WorkerState
from colibri.cluster.workers.local import LocalLauncher
from colibri.deadline import Deadline
from colibri.errors import InvalidInput, WorkerLost
from colibri.placement import Placement, spread
from tests.conftest import TINY
from tests.support.clusters import eventually, is_alive, kill

NAMES = ("w0", "w1")


@contextmanager
def launched(model: Path, folder: Path, replicas: int = 1, **options: object) -> Iterator[LocalLauncher]:
    placement = spread(TINY.layers, TINY.experts, NAMES, replicas)
    launch = LaunchOptions(model, "bf16", run_folder_parent=folder, **options)  # type: ignore[arg-type]
    pins = plan_workers(discover(), Wanted(len(NAMES), share=True))
    launcher = LocalLauncher(launch, placement, pins, log=print)
    with launcher:
        launcher.start()
        yield launcher


def status(launcher: LocalLauncher, name: str):  # type: ignore[no-untyped-def]
    return next(status for status in launcher.status() if status.name == name)


def threads_by_niceness(pid: int) -> set[int]:
    """Niceness of every thread (man 5 proc: field 19 of stat)."""
    found = set()
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        try:
            found.add(int((task / "stat").read_text().rpartition(")")[2].split()[16]))
        except OSError:
            continue
    return found


def test_one_more_joins_without_experts_and_leaves(tiny_mixtral: Path, tmp_path: Path) -> None:
    with launched(tiny_mixtral, tmp_path) as launcher:
        pin = launcher.pins()["w0"]
        launcher.add("w2", pin)
        with pytest.raises(InvalidInput, match="a name that is free, got w2"):
            launcher.add("w2", pin)
        launcher.wait_up("w2", Deadline.after(30))
        assert launcher.is_up("w2")
        assert launcher.directory.current().endpoints.keys() == {"w0", "w1", "w2"}
        joined = status(launcher, "w2")
        assert (joined.state, joined.experts, joined.incarnation) == (WorkerState.SERVING, 0, 3)
        # It started at a low priority, and serves at the usual one; the thread that loaded ends a little later.
        eventually(lambda: threads_by_niceness(joined.pid) == {0}, 5.0, "no thread at a low priority")
        sockets = len(list(tmp_path.glob("*/*.sock")))
        launcher.remove("w2")
        assert not is_alive(joined.pid)
        assert len(list(tmp_path.glob("*/*.sock"))) == sockets - 1
        assert launcher.directory.current().endpoints.keys() == set(NAMES)
        launcher.remove("w2")
        launcher.add("w2", pin)
        launcher.wait_up("w2", Deadline.after(30))
        assert status(launcher, "w2").incarnation == 4
        with pytest.raises(WorkerLost, match="w7 was not up in time"):
            launcher.wait_up("w7", Deadline.after(0.1))
    with pytest.raises(InvalidInput, match="launcher: expected one that runs"):
        launcher.add("w3", pin)


def test_leaving_is_quick_and_told_first(tiny_mixtral: Path, tmp_path: Path) -> None:
    with launched(tiny_mixtral, tmp_path, replicas=2, stop_grace_s=20.0) as launcher:
        gone = []

        def watch() -> None:
            if "w1" not in launcher.directory.current().endpoints:
                gone.append(is_alive(pid))

        pid = status(launcher, "w1").pid
        launcher.publisher.listen(watch)
        launcher.remove("w1")
        assert gone[0], "routers hear of it while it still lives"
        assert not is_alive(pid)


def test_a_worker_that_hangs_is_killed_and_started_again(tiny_mixtral: Path, tmp_path: Path) -> None:
    with launched(tiny_mixtral, tmp_path, poll_s=0.2, hung_after_s=1.0) as launcher:
        hung = status(launcher, "w1")
        os.kill(hung.pid, signal.SIGSTOP)
        begun = time.monotonic()
        eventually(lambda: status(launcher, "w1").incarnation > hung.incarnation, 20.0, "a new life")
        assert time.monotonic() - begun > 0.9
        assert not is_alive(hung.pid)
        assert "gave no status" in status(launcher, "w1").last_error
        eventually(lambda: "w1" in launcher.directory.current().endpoints, 30.0, "it serves again")
        assert status(launcher, "w0").deaths == 0


def test_a_short_hang_is_forgiven(tiny_mixtral: Path, tmp_path: Path) -> None:
    with launched(tiny_mixtral, tmp_path, poll_s=0.2, hung_after_s=3.0) as launcher:
        before = status(launcher, "w1")
        for _ in range(2):
            os.kill(before.pid, signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(before.pid, signal.SIGCONT)
            time.sleep(1.0)
        assert status(launcher, "w1").incarnation == before.incarnation
        assert status(launcher, "w1").deaths == 0


def test_who_comes_back_loads_by_the_placement_of_that_moment(tiny_mixtral: Path, tmp_path: Path) -> None:
    with launched(tiny_mixtral, tmp_path, backoff_s=0.01) as launcher:
        assert status(launcher, "w1").experts == 12
        kill(status(launcher, "w1").pid)
        everything = spread(TINY.layers, TINY.experts, NAMES, 2, epoch=2)
        launcher.publisher.commit(everything, {})
        eventually(lambda: status(launcher, "w1").experts == 24, 30.0, "it holds all")
        assert "w1" in launcher.directory.current().endpoints
        kill(status(launcher, "w1").pid)
        nothing = Placement(3, NAMES, tuple(tuple((0,) for _ in experts) for experts in everything.holders))
        launcher.publisher.commit(nothing, {})
        eventually(lambda: status(launcher, "w1").experts == 0, 30.0, "it holds nothing")
        assert status(launcher, "w1").incarnation == 4


def test_lives_leave_nothing_behind(tiny_mixtral: Path, tmp_path: Path) -> None:
    """Threads, descriptors, sockets and memory of the launcher after many deaths, as after a few."""
    with launched(tiny_mixtral, tmp_path, backoff_s=0.0, backoff_max_s=0.0) as launcher:
        counts = []
        for _ in range(8):
            before = status(launcher, "w1").incarnation
            kill(status(launcher, "w1").pid)
            eventually(
                lambda before=before: (  # type: ignore[misc]
                    "w1" in launcher.directory.current().endpoints
                    and status(launcher, "w1").incarnation > before
                ),
                30.0,
                "it is back",
            )
            counts.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))
        # grpc's own come and go by one or two; one left by each life would be four more by now.
        for kind in zip(*counts, strict=True):
            assert min(kind[4:]) <= min(kind[:4]) + 2, kind
        assert len(list(tmp_path.glob("*/*.sock"))) == 2
        assert status(launcher, "w1").deaths == 8


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace that this process reaches at 10.213.0.2."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the program ip: apt-get install iproute2")
    name = f"colibri-t{os.getpid()}"
    link = f"ct{os.getpid() % 100000}"
    commands = (
        f"ip netns add {name}",
        f"ip link add {link} type veth peer name eth0 netns {name}",
        f"ip addr add 10.213.0.1/24 dev {link}",
        f"ip link set {link} up",
        f"ip -n {name} addr add 10.213.0.2/24 dev eth0",
        f"ip -n {name} link set eth0 up",
        f"ip -n {name} link set lo up",
    )
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no network namespaces here: {command}: {done.stderr.strip()}")
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", link], capture_output=True, check=False)


def test_a_worker_in_a_namespace(tiny_mixtral: Path, tmp_path: Path, namespace: str) -> None:
    networks = {"w1": NetworkPlace(namespace, "10.213.0.2")}
    with launched(tiny_mixtral, tmp_path, networks=networks) as launcher:
        there = status(launcher, "w1")
        assert there.target.startswith("10.213.0.2:")
        assert status(launcher, "w0").target.startswith("unix:")
        assert os.readlink(f"/proc/{there.pid}/ns/net") != os.readlink("/proc/self/ns/net")
        kill(there.pid)
        eventually(
            lambda: (
                "w1" in launcher.directory.current().endpoints
                and status(launcher, "w1").incarnation > there.incarnation
            ),
            30.0,
            "it is back, in the namespace",
        )
        assert status(launcher, "w1").target.startswith("10.213.0.2:")
    assert not is_alive(there.pid)
