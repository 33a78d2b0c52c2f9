"""The manager over real workers, without a router: who stays away, and commands side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from colibri.cluster.experts.holders import ExpertId, copies, held_by, holders_of
from colibri.cluster.machine.pinning_plan import Wanted, plan_joining, plan_workers
from colibri.cluster.machine.topology import discover
from colibri.cluster.placing import transaction
from colibri.cluster.placing.commands import Drain, Scale, Ticket
from colibri.cluster.placing.desired import Desired
from colibri.cluster.placing.manager import PlacementManager
from colibri.cluster.placing.reconcile import ManagerOptions
from colibri.cluster.workers.expert_calls import held_experts, load_experts
from colibri.cluster.workers.launch import LaunchOptions
from colibri.cluster.workers.local import LocalLauncher
from colibri.errors import Busy
from colibri.placement import WorkerEndpoint, spread
from tests.conftest import TINY
from tests.support.clusters import eventually, kill

WAIT_S = 60.0


@contextmanager
def managed(
    model: Path, folder: Path, workers: int, replicas: int, options: ManagerOptions, **launch: object
) -> Iterator[tuple[LocalLauncher, PlacementManager]]:
    names = [f"w{index}" for index in range(workers)]
    placement = spread(TINY.layers, TINY.experts, names, replicas)
    places = discover()
    launcher = LocalLauncher(
        LaunchOptions(model, "bf16", run_folder_parent=folder, **launch),  # type: ignore[arg-type]
        placement,
        plan_workers(places, Wanted(workers, share=True)),
        log=print,
    )
    with launcher:
        launcher.start()
        manager = PlacementManager(
            launcher,
            Desired.of(placement, replicas),
            lambda present, names: plan_joining(places, Wanted(len(names), share=True), present),
            options,
            log=print,
        )
        try:
            yield launcher, manager
        finally:
            manager.close()


def end(ticket: Ticket) -> None:
    for _ in ticket.steps(1.0):
        pass


def copies_now(launcher: LocalLauncher) -> dict[str, int]:
    return dict(copies(holders_of(launcher.directory.current().placement)))


def test_who_stays_away_is_replaced_until_it_is_back(tiny_mixtral: Path, tmp_path: Path) -> None:
    options = ManagerOptions(absent_after_s=0.5)
    with managed(tiny_mixtral, tmp_path, 3, 2, options, backoff_s=4.0) as (launcher, _):
        assert copies_now(launcher) == {"w0": 16, "w1": 16, "w2": 16}
        kill(next(status.pid for status in launcher.status() if status.name == "w1"))
        eventually(lambda: copies_now(launcher) == {"w0": 24, "w2": 24}, 20.0, "two hold everything")
        for endpoint in launcher.directory.current().endpoints.values():
            assert len(held_experts(endpoint, 5.0)) == 24
        eventually(
            lambda: copies_now(launcher) == {"w0": 16, "w1": 16, "w2": 16}, 60.0, "it has its share again"
        )
        membership = launcher.directory.current()
        for name, endpoint in membership.endpoints.items():
            wanted = held_by(holders_of(membership.placement), name)
            eventually(lambda e=endpoint, w=wanted: held_experts(e, 5.0) == w, 20.0, "as placed")  # type: ignore[misc]


def test_commands_queue_up_to_a_bound_and_run_in_order(tiny_mixtral: Path, tmp_path: Path) -> None:
    with managed(tiny_mixtral, tmp_path, 2, 1, ManagerOptions()) as (launcher, manager):
        tickets = [manager.submit(Scale(3)), manager.submit(Drain("w1")), manager.submit(Scale(4))]

        def flood() -> None:
            for _ in range(20):
                tickets.append(manager.submit(Scale(4)))

        with pytest.raises(Busy, match="8 changes wait"):
            flood()
        for ticket in tickets:
            end(ticket)
        assert [status.name for status in launcher.status()] == ["w0", "w2", "w3", "w4"]
        view = manager.view()
        assert view.desired.drained == ("w1",)
        assert (view.change, view.last_error, view.draining) == ("", "", frozenset())
        assert copies_now(launcher) == {"w0": 6, "w2": 6, "w3": 6, "w4": 6}


def test_copies_are_not_made_for_a_worker_that_came_back_meanwhile(
    tiny_mixtral: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returns with all of its own experts while survivors load them: that change is called off, nothing is loaded
    twice, and what was loaded for it goes."""
    loading, back = threading.Event(), threading.Event()
    asked: list[tuple[str, int]] = []

    def load(endpoint: WorkerEndpoint, experts: Sequence[ExpertId], *args: Any, **options: Any) -> None:
        asked.append((endpoint.name, len(experts)))
        load_experts(endpoint, experts, *args, **options)
        loading.set()
        assert back.wait(WAIT_S)  # its last expert is slow

    monkeypatch.setattr(transaction, "load_experts", load)
    options = ManagerOptions(absent_after_s=0.2)
    with managed(tiny_mixtral, tmp_path, 3, 2, options, backoff_s=3.0) as (launcher, manager):
        before = launcher.directory.current().placement
        kill(next(status.pid for status in launcher.status() if status.name == "w1"))
        assert loading.wait(WAIT_S), "copies are made in its place"
        eventually(lambda: "w1" in launcher.directory.current().endpoints, 60.0, "it is back")
        back.set()
        eventually(lambda: manager.view().change == "", 20.0, "nothing is under way")
        membership = launcher.directory.current()
        for name, endpoint in membership.endpoints.items():
            wanted = held_by(holders_of(before), name)
            eventually(lambda e=endpoint, w=wanted: held_experts(e, 5.0) == w, 30.0, "as before")  # type: ignore[misc]
        assert launcher.directory.current().placement is before, "no change was committed"
        assert {name for name, _ in asked} <= {"w0", "w2"}, "and it was not asked to load again"
