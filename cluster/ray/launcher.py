"""RayLauncher: expert workers on the hosts of a Ray cluster, an actor each."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from colibri.cluster.child import ANYWHERE
from colibri.cluster.expert_calls import WorkerProgress
from colibri.cluster.launch import LaunchOptions
from colibri.cluster.launcher import Launcher
from colibri.cluster.life import WorkerLife
from colibri.cluster.pinning_plan import WorkerPlace
from colibri.cluster.ray.actor import WorkerActor
from colibri.cluster.ray.life import ACTOR_S, RayLife
from colibri.cluster.ray.options import RESOURCE, RayOptions
from colibri.cluster.ray.places import Places
from colibri.cluster.ray.session import api, connect
from colibri.deadline import Clock
from colibri.errors import ColibriError
from colibri.placement import Placement
from colibri.security.channel import PLAIN
from colibri.security.plane_secret import PlaneSecret

#: Methods of an actor that may wait beside each other: begin, wait_end, look, end, and what a former life left.
_CONCURRENCY = 8
_STARTING_TAKES = 5


class RayLauncher(Launcher):
    """Ray places each worker's actor, restarts it, and takes it to another host when its own is lost. Everything ends
    with this process, also when it is killed."""

    def __init__(
        self,
        options: LaunchOptions,
        placement: Placement,
        ray: RayOptions,
        *,
        progress: WorkerProgress = lambda worker, done, total, nbytes: None,
        milestone: Callable[[str], None] = lambda name: None,
        log: Callable[[str], None] = lambda line: None,
        clock: Clock = time.monotonic,
    ) -> None:
        pins: Sequence[WorkerPlace] = [ANYWHERE] * len(placement.workers)
        source = Actors(options, ray, clock)
        super().__init__(
            options, placement, pins, source, progress=progress, milestone=milestone, log=log, clock=clock
        )


class Actors:
    """LifeSource over Ray."""

    def __init__(self, options: LaunchOptions, ray: RayOptions, clock: Clock) -> None:
        self._options = options
        self._ray = ray
        self._clock = clock
        self._places = Places(ray, clock)
        self._lock = threading.Lock()
        self._actors: dict[str, Any] = {}
        self._leave: Callable[[], None] | None = None
        self._closed = False

    @property
    def secret(self) -> PlaneSecret | None:
        return self._options.handed_secret

    @property
    def wait_s(self) -> float:
        return self._ray.place_s + ACTOR_S

    def open(self, names: tuple[str, ...]) -> None:
        self._leave = connect(self._ray.address)
        self._places.open(names)

    def begin(
        self,
        name: str,
        incarnation: int,
        place: WorkerPlace,
        *,
        yielding: bool,
        on_exit: Callable[[WorkerLife], None],
    ) -> WorkerLife:
        return RayLife(
            name,
            incarnation,
            self,
            yielding=yielding,
            ready_s=self._options.ready_timeout_s * (_STARTING_TAKES if yielding else 1),
            place_s=self._ray.place_s,
            on_exit=on_exit,
            clock=self._clock,
        )

    def clear(self, name: str, incarnation: int) -> None:
        """Nothing of a life lies on this machine."""

    def handle(self, name: str, cancelled: Callable[[], bool]) -> Any:
        with self._lock:
            actor = self._actors.get(name)
        if actor is not None:
            return actor
        self._places.wait(name, cancelled)
        with self._lock:
            if cancelled() or self._closed:
                return None
            self._actors[name] = self._make(name)
            return self._actors[name]

    def shortage(self, name: str) -> ColibriError:
        return self._places.shortage(name)

    def dead(self, name: str) -> None:
        with self._lock:
            self._actors.pop(name, None)

    def spent(self, name: str) -> None:
        with self._lock:
            actor = None if self._closed else self._actors.get(name)
        if actor is not None:
            _kill(actor, restart=True)

    def forget(self, name: str) -> None:
        with self._lock:
            actor = self._actors.pop(name, None)
        if actor is not None:
            _kill(actor, restart=False)
        self._places.release(name)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            actors = list(self._actors.values())
            self._actors.clear()
            leave, self._leave = self._leave, None
        for actor in actors:
            _kill(actor, restart=False)
        if leave is not None:
            self._places.close()
            leave()

    def abandon(self) -> None:
        """Ray ends a driver's actors with it, and groups too."""

    def _make(self, name: str) -> Any:
        ray = api()
        actor: Any = ray.remote(WorkerActor)
        return actor.options(
            name=None,
            num_cpus=0,
            num_gpus=self._ray.gpus,
            resources={RESOURCE: 1},
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=_CONCURRENCY,
            scheduling_strategy=self._places.strategy(name),
        ).remote(name, _travelling(self._options), self._ray.seating)


def _travelling(options: LaunchOptions) -> LaunchOptions:
    """What the hosts need of them; nothing else leaves this machine. The secret goes with each start (actor.py)."""
    tls = None if options.tls is None else replace(options.tls, channel=PLAIN)
    return replace(options, env=None, networks={}, run_folder_parent=None, tls=tls, secret=None)


def _kill(actor: Any, *, restart: bool) -> None:
    ray = api()
    with contextlib.suppress(Exception):  # Ray may have ended it, or itself
        ray.kill(actor, no_restart=not restart)
