"""What Ray adds: places that cannot be had are told, an actor that dies takes its worker along and comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from colibri.cluster.ray.launcher import RayLauncher
from colibri.cluster.ray.options import RayOptions, Spread
from colibri.cluster.workers.launch import LaunchOptions, WorkerState
from colibri.cluster.workers.worker_process import ANYWHERE
from colibri.errors import DeadlineExpired
from colibri.placement import spread
from colibri.security.plane_secret import PlaneSecret
from tests.conformance.launchers.test_launcher import RAY, SEATS, SOON_S, Launch, launched, serves_after
from tests.conftest import TINY
from tests.support.clusters import eventually, is_alive, kill
from tests.support.ray_node import ray_node

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def node() -> Iterator[None]:
    with ray_node(SEATS):
        yield


def start(model: Path, workers: int, ray: RayOptions) -> None:
    names = [f"w{index}" for index in range(workers)]
    launch = LaunchOptions(model, "bf16", insecure=True)
    with RayLauncher(launch, spread(TINY.layers, TINY.experts, names), ray) as launcher:
        launcher.start()


def test_too_few_places_are_told_by_the_deadline(tiny_mixtral: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(DeadlineExpired) as caught:
        start(tiny_mixtral, SEATS + 1, replace(RAY, place_s=1.0))
    assert time.monotonic() - begun < SOON_S
    assert "4 workers (w0, w1, w2, w3) need one colibri_worker each" in caught.value.message
    assert "1 host that offer it" in caught.value.message
    assert f"with {SEATS})" in caught.value.message
    assert "3 free" in caught.value.message


def test_too_few_hosts_are_told_by_the_deadline(tiny_mixtral: Path) -> None:
    with pytest.raises(DeadlineExpired, match="each on 2 different hosts; Ray has 1 host"):
        start(tiny_mixtral, 2, replace(RAY, spread=Spread.HOSTS, place_s=1.0))
    with pytest.raises(DeadlineExpired, match=r"replicas on 2 different hosts .*all workers on 1"):
        start(tiny_mixtral, 2, replace(RAY, hosts=2, place_s=10.0))


def test_a_later_worker_without_a_place_is_refused_and_the_others_serve_on(
    tiny_mixtral: Path, tmp_path: Path
) -> None:
    with launched("ray", tiny_mixtral, tmp_path, SEATS, replace(RAY, place_s=3.0)) as launch:
        launch.launcher.add("w9", ANYWHERE)
        with pytest.raises(DeadlineExpired, match=r"no place for w9 within 3 s: 1 worker \(w9\) need"):
            eventually(lambda: launch.launcher.is_up("w9"), SOON_S, "w9 is up or refused")
        launch.launcher.remove("w9")
        assert {status.state for status in launch.launcher.status()} == {WorkerState.SERVING}


def test_a_worker_outlives_its_actor_and_rays_client_and_is_taken_over(
    tiny_mixtral: Path, tmp_path: Path
) -> None:
    with launched("ray", tiny_mixtral, tmp_path) as launch:
        before = launch.status("w0")
        for part in ("ray::WorkerActor", "colibri.cluster.ray.driver"):
            victims = running(part)
            assert victims
            launch.log.clear()
            for pid in victims:
                kill(pid)
            eventually(
                lambda: taken_over(launch, "w0", "w1") or not is_alive(before.pid),
                2 * SOON_S,
                f"without {part}: taken over",
            )
            assert is_alive(before.pid), f"the worker died with {part}"
            now = launch.status("w0")
            assert (now.pid, now.incarnation, now.deaths) == (before.pid, before.incarnation, 0)
        # Its end is told through the actor that took it over.
        kill(before.pid)
        after = launch.back(before)
        assert (after.deaths, "SIGKILL" in after.last_error) == (1, True)
        assert os.sched_getaffinity(after.pid) == set(after.pin.cpus)


#: A coordinator that is killed: it says who its workers are, and waits for that.
COORDINATOR = """
import json, sys, time
from pathlib import Path
from colibri.cluster.workers.launch import LaunchOptions
from colibri.cluster.ray.launcher import RayLauncher
from colibri.cluster.ray.options import RayOptions, Seating, Spread
from colibri.placement import spread
from colibri.security.plane_secret import PlaneSecret
model, state, layers, experts, secret = sys.argv[1:]
ray = RayOptions(spread=Spread.ANY, seating=Seating(share=True), place_s=30.0, state=Path(state))
options = LaunchOptions(Path(model), "bf16", insecure=True, secret=PlaneSecret(secret))
launcher = RayLauncher(options, spread(int(layers), int(experts), ["w0", "w1"]), ray)
launcher.start()
print(json.dumps({each.name: [each.pid, each.incarnation] for each in launcher.status()}), flush=True)
time.sleep(120)
"""


def test_the_next_coordinator_takes_the_workers_of_a_killed_one_over(
    tiny_mixtral: Path, tmp_path: Path
) -> None:
    secret, state = PlaneSecret.draw(), tmp_path / "workers"
    arguments = [str(tiny_mixtral), str(state), str(TINY.layers), str(TINY.experts), secret.text]
    first = subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert first.stdout is not None
        before = {name: tuple(life) for name, life in json.loads(first.stdout.readline()).items()}
    finally:
        first.kill()
        first.communicate(timeout=10)
    assert all(is_alive(pid) for pid, _ in before.values()), "workers outlive their coordinator"
    log: list[str] = []
    options = LaunchOptions(tiny_mixtral, "bf16", insecure=True, secret=secret)
    placement = spread(TINY.layers, TINY.experts, ["w0", "w1"])
    with RayLauncher(options, placement, replace(RAY, state=state), log=log.append) as launcher:
        launcher.start()
        found = {each.name: (each.pid, each.incarnation) for each in launcher.status()}
        assert found == before
        assert sum("is taken over" in line for line in log) >= 2
        # A new life has a number of its own, and an actor for it.
        status = next(each for each in launcher.status() if each.name == "w0")
        kill(status.pid)
        eventually(lambda: serves_after(launcher.directory, status), 2 * SOON_S, f"w0 serves again: {log}")
    eventually(
        lambda: not any(is_alive(pid) for pid, _ in before.values()),
        SOON_S,
        "`close` ends what was taken over",
    )


def running(part: str) -> list[int]:
    """Processes that this one started, or that those did, with that in their command line."""
    parents = {int(pid): parent(int(pid)) for pid in os.listdir("/proc") if pid.isdecimal()}
    return [pid for pid in parents if part in command(pid) and os.getpid() in ancestors(pid, parents)]


def ancestors(pid: int, parents: Mapping[int, int]) -> list[int]:
    found = []
    while pid := parents.get(pid, 0):
        found.append(pid)
    return found


def parent(pid: int) -> int:
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def taken_over(launch: Launch, *names: str) -> bool:
    return all(
        any(f"worker {name} " in line and "taken over by a new actor" in line for line in launch.log)
        for name in names
    )


def test_nothing_of_a_request_goes_through_ray() -> None:
    """The words that pass between coordinator and actor: what starts, watches and ends a worker."""
    from colibri.cluster.ray.actor import WorkerActor

    methods = {name for name in vars(WorkerActor) if not name.startswith("_")}
    assert methods == {"look", "begin", "adopt", "wait_end", "end"}
