"""What Ray adds: places that cannot be had are told, an actor that dies takes its worker along and comes back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from colibri.cluster.child import ANYWHERE
from colibri.cluster.launch import LaunchOptions, WorkerState
from colibri.cluster.ray.launcher import RayLauncher
from colibri.cluster.ray.options import RayOptions, Spread
from colibri.errors import DeadlineExpired
from colibri.placement import spread
from tests.conformance.launchers.test_launcher import RAY, SEATS, SOON_S, launched
from tests.conftest import TINY
from tests.support.clusters import eventually, is_alive, kill
from tests.support.ray_node import ray_node


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


def test_an_actor_that_is_killed_takes_its_worker_along_and_ray_restarts_it(
    tiny_mixtral: Path, tmp_path: Path
) -> None:
    with launched("ray", tiny_mixtral, tmp_path) as launch:
        before = launch.status("w0")
        actor = int((Path("/proc") / str(before.pid) / "stat").read_text().rpartition(")")[2].split()[1])
        assert "WorkerActor" in (Path("/proc") / str(actor) / "cmdline").read_text()
        kill(actor)
        eventually(lambda: not is_alive(before.pid), SOON_S, "the worker dies with its actor")
        after = launch.back(before)
        assert after.deaths == 1
        assert os.sched_getaffinity(after.pid) == set(after.pin.cpus), "the constructor pinned anew"


def test_nothing_of_a_request_goes_through_ray() -> None:
    """The words that pass between coordinator and actor: what starts, watches and ends a worker."""
    from colibri.cluster.ray.actor import WorkerActor

    methods = {name for name in vars(WorkerActor) if not name.startswith("_")}
    assert methods == {"look", "begin", "wait_end", "end"}
