"""`python -m colibri.cluster.ray.driver`: the process of a coordinator that is Ray's client.

Ray ends its client's process when the raylet beside it dies, or when the GCS is away for a minute. The coordinator
holds the requests, so it must not be that process: this one is, it may die at any time, and holds nothing. It does
what it is asked over a socket (`bridge`), and ends with the coordinator.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from colibri.cluster.ray.actor import Begun, Ended, Identity, WorkerActor
from colibri.cluster.ray.options import RESOURCE, RayOptions
from colibri.cluster.ray.placement_groups import PlacementGroups
from colibri.cluster.ray.session import Host, api, connect, living_nodes
from colibri.cluster.workers.launch import LaunchOptions
from colibri.deadline import Deadline
from colibri.errors import ColibriError, WorkerLost
from colibri.security.plane_secret import PlaneSecret

#: From a place to an actor that answers: Ray starts a process and imports Colibri there.
ACTOR_S = 60.0
#: An actor that does not answer for so long is given up: its host is dead or cut off.
SILENT_S = 5.0
#: Methods of an actor that may wait beside each other: begin, wait_end, look, end, and what a former life left.
_CONCURRENCY = 8
_AGAIN_S = 0.1
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What a driver is told first. names: workers of the start that have no host yet; hosts: name -> address of those
    that run.
    """

    ray: RayOptions
    options: LaunchOptions
    identity: Identity
    names: tuple[str, ...]
    hosts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """error: a typed one; lost: what Ray said of an actor that is gone."""

    call: int
    value: Any = None
    error: ColibriError | None = None
    lost: str = ""


class Driver:
    """The methods that the coordinator calls, each on its own thread."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._leave = connect(setup.ray.address)
        self._groups = PlacementGroups(setup.ray)
        self._lock = threading.Lock()
        self._actors: dict[str, Any] = {}
        self._called_off: set[str] = set()
        threading.Thread(target=_end_with_raylet, name="colibri-raylet", daemon=True).start()
        self._settled = threading.Event()
        threading.Thread(target=self._settle, name="colibri-settle", daemon=True).start()

    def _settle(self) -> None:
        """Notes hosts of running workers first, so that Ray does not give these away; then finds places for the
        others.
        """

        def claim(name: str) -> None:
            with contextlib.suppress(Exception):  # its host is away; its life tries again
                self.find(name, self._setup.hosts[name])

        try:
            with ThreadPoolExecutor(max(1, min(32, len(self._setup.hosts)))) as pool:
                list(pool.map(claim, self._setup.hosts))
            if self._setup.names:
                self._groups.open(self._setup.names)
        finally:
            self._settled.set()

    def find(self, name: str, address: str) -> Host:
        """Returns the host of the worker's actor, and makes the actor if there is none. Raises ColibriError without a
        place.

        address: the actor must be on that host; empty: any.
        """
        ray = api()
        with self._lock:
            self._called_off.discard(name)
        actor = self._handle(name, address)
        deadline = Deadline.after((0.0 if address else self._setup.ray.place_s) + ACTOR_S)
        while actor is not None and not self._is_off(name):
            if deadline.expired():
                raise self._groups.shortage(name)
            try:
                host: Host = ray.get(actor.look.remote(), timeout=deadline.bound(_LOOK_S))
            except ray.exceptions.ActorDiedError as error:
                self._drop(name)
                raise WorkerLost(f"worker {name}: {_plain(error)}", peer=name) from error
            except ray.exceptions.RayError:
                threading.Event().wait(_AGAIN_S)  # it is being started, or restarted
                continue
            if address and host.address != address:
                self._drop(name)
                actor = self._handle(name, address)
                continue
            return host
        raise WorkerLost(f"worker {name}: it was called off", peer=name)

    def begin(
        self, name: str, incarnation: int, yielding: bool, ready_s: float, secret: PlaneSecret | None
    ) -> Begun:
        actor = self._actor(name)
        found: Begun = api().get(actor.begin.remote(incarnation, yielding, ready_s, secret))
        return found

    def adopt(self, name: str, incarnation: int) -> Begun:
        actor = self._actor(name)
        found: Begun = api().get(actor.adopt.remote(incarnation), timeout=SILENT_S)
        return found

    def wait_end(self, name: str) -> Ended:
        ended: Ended = api().get(self._actor(name).wait_end.remote())
        return ended

    def end(self, name: str, force: bool) -> None:
        with contextlib.suppress(WorkerLost):
            self._actor(name).end.remote(force)

    def call_off(self, name: str) -> None:
        """Makes `find` return."""
        with self._lock:
            self._called_off.add(name)

    def forget(self, name: str) -> None:
        """Begins nothing more under that name."""
        self.call_off(name)
        self._drop(name)
        self._groups.release(name)

    def close(self) -> None:
        with self._lock:
            actors = list(self._actors.values())
            self._actors.clear()
        for actor in actors:
            _kill(actor)
        self._groups.close()
        self._leave()

    def _is_off(self, name: str) -> bool:
        with self._lock:
            return name in self._called_off

    def _actor(self, name: str) -> Any:
        with self._lock:
            actor = self._actors.get(name)
        if actor is None:
            raise WorkerLost(f"worker {name}: there is no actor for it", peer=name)
        return actor

    def _drop(self, name: str) -> None:
        with self._lock:
            actor = self._actors.pop(name, None)
        if actor is not None:
            _kill(actor)

    def _handle(self, name: str, address: str) -> Any:
        """Returns the actor; None: called off."""
        with self._lock:
            actor = self._actors.get(name)
        if actor is not None:
            return actor
        if not address:
            while not self._settled.wait(_AGAIN_S):
                if self._is_off(name):
                    return None
            self._groups.wait(name, lambda: self._is_off(name))
        with self._lock:
            if name in self._called_off:
                return None
            self._actors[name] = self._make(name, address)
            return self._actors[name]

    def _make(self, name: str, address: str) -> Any:
        setup = self._setup
        actor: Any = api().remote(WorkerActor)
        # The seat of one that runs and is in a group is counted there already.
        seat = not address or not self._groups.has(name)
        return actor.options(
            name=None,
            num_cpus=0,
            num_gpus=setup.ray.gpus if seat else 0,
            resources={RESOURCE: 1} if seat else {},
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=_CONCURRENCY,
            scheduling_strategy=_on(name, address) if address else self._groups.strategy(name),
        ).remote(name, setup.options, setup.ray.seating, setup.identity)


def _end_with_raylet() -> None:
    """Ends this process with its raylet. If a new GCS answers at the old address, a client without its raylet would
    wait for ever; the next driver joins the new Ray.
    """
    path = api()._private.worker._global_node.raylet_socket_name
    while True:
        time.sleep(_LOOK_S)
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(SILENT_S)
            try:
                probe.connect(path)
            except TimeoutError:
                continue  # it is busy
            except OSError:
                os._exit(1)


def _on(name: str, address: str) -> Any:
    """Returns Ray's option for that host, which may have a new id. Raises WorkerLost if it is away."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    for node in living_nodes():
        if node.host.address == address:
            return NodeAffinitySchedulingStrategy(node.id, soft=False)
    raise WorkerLost(f"worker {name}: its host {address} is not among Ray's", peer=name)


def _kill(actor: Any) -> None:
    with contextlib.suppress(Exception):  # Ray may have ended it, or itself
        api().kill(actor, no_restart=True)


def _plain(error: BaseException) -> str:
    """Returns one line of an error that Ray writes in many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def serve(connection: Connection) -> None:
    """Answers calls until the other side is gone."""
    sending = threading.Lock()

    def send(answer: Answer) -> None:
        with sending, contextlib.suppress(OSError):
            connection.send(answer)

    try:
        driver = Driver(connection.recv())
    except ColibriError as error:
        send(Answer(0, error=error))
        return
    send(Answer(0))
    try:
        while True:
            number, method, arguments = connection.recv()
            call: Callable[..., Any] = getattr(driver, method)
            threading.Thread(target=_answer, args=(send, number, call, arguments), daemon=True).start()
    except (EOFError, OSError):
        driver.close()


def _answer(send: Callable[[Answer], None], number: int, call: Callable[..., Any], arguments: Any) -> None:
    try:
        send(Answer(number, call(*arguments)))
    except ColibriError as error:
        send(Answer(number, error=error))
    except Exception as error:  # whatever Ray may raise must not leave anybody waiting
        send(Answer(number, lost=f"{type(error).__name__}: {_plain(error)}"))


def main() -> int:
    serve(Connection(int(sys.argv[1])))
    return 0


if __name__ == "__main__":
    from colibri.cluster.ray import driver

    # Under its own name, so that what is pickled is the same class on both sides.
    sys.exit(driver.main())
