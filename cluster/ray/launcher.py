"""RayLauncher: expert workers on the hosts of a Ray cluster, an actor each."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.ray.actor import Identity
from colibri.cluster.ray.bridge import Bridge, RayAway
from colibri.cluster.ray.driver import ACTOR_S, Setup
from colibri.cluster.ray.life import RayLife
from colibri.cluster.ray.options import RayOptions
from colibri.cluster.ray.record import WorkerRecord
from colibri.cluster.ray.state import DeploymentState
from colibri.cluster.workers.expert_calls import WorkerProgress, ask_status, end_worker
from colibri.cluster.workers.launch import LaunchOptions
from colibri.cluster.workers.launcher import Launcher
from colibri.cluster.workers.life import WorkerLife
from colibri.cluster.workers.worker_process import ANYWHERE
from colibri.deadline import Clock
from colibri.errors import ColibriError
from colibri.placement import Placement, WorkerEndpoint
from colibri.security.channel import PLAIN
from colibri.security.plane_secret import PlaneSecret
from colibri.v1 import expert_pb2

_STARTING_TAKES = 5
#: A worker of the last coordinator that does not answer for so long is begun anew.
_TAKE_OVER_S = 3.0
_CALL_S = 10.0


class RayLauncher(Launcher):
    """Runs workers on hosts that Ray chooses. Ray places each worker's actor, and takes it to another host if its own
    is lost.

    Workers outlive actors, Ray and this process: for the length of their lease, or until the next launcher with the
    same `ray.state` takes them over. `close` ends them.
    """

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
        pins: Sequence[WorkerPinning] = [ANYWHERE] * len(placement.workers)
        options = replace(options, lease_s=ray.lease_s)
        source = Actors(options, ray, log, clock)
        # What the last coordinator's workers have retired stays retired.
        epoch = max(placement.epoch, source.look_around() + 1)
        super().__init__(
            options,
            replace(placement, epoch=epoch),
            pins,
            source,
            progress=progress,
            milestone=milestone,
            log=log,
            clock=clock,
        )


class Actors:
    """A LifeSource over Ray."""

    def __init__(
        self, options: LaunchOptions, ray: RayOptions, log: Callable[[str], None], clock: Clock
    ) -> None:
        self._options = options
        self._ray = ray
        self._clock = clock
        self._state = DeploymentState(ray.state)
        travelling = _travelling(options)
        self._identity = Identity(self._state.deployment, _fingerprint(travelling, ray))
        self._bridge = Bridge(
            lambda: Setup(ray, travelling, self._identity, self._fresh, self._hosts()), log, clock
        )
        self._fresh: tuple[str, ...] = ()
        self._known: dict[str, WorkerRecord] = {}
        self.log = log

    @property
    def secret(self) -> PlaneSecret | None:
        return self._options.handed_secret

    @property
    def wait_s(self) -> float:
        return self._ray.place_s + ACTOR_S

    @property
    def last_incarnation(self) -> int:
        return self._state.incarnation

    def look_around(self) -> int:
        """Finds the last coordinator's workers that can be taken over, and tells its other workers to end.

        Returns the oldest epoch that all of those found serve; 0 without any.
        """
        records = list(self._state.workers.values())
        with ThreadPoolExecutor(max(1, min(32, len(records)))) as pool:
            replies = list(pool.map(self._look_at, records))
        epoch = 0
        for record, reply in zip(records, replies, strict=True):
            if reply is None:
                self._state.ended(record.name, record.incarnation)
            else:
                self._known[record.name] = record
                epoch = max(epoch, reply.epoch_min)
        return epoch

    def open(self, names: tuple[str, ...]) -> None:
        for name in self._known.keys() - set(names):
            self.log(f"worker {name} of the last coordinator is not wanted any more: it is told to end")
            self._end(self._known.pop(name))
        self._fresh = tuple(name for name in names if name not in self._known)
        self._bridge.open(patient=bool(self._known))

    def begin(
        self,
        name: str,
        incarnation: int,
        place: WorkerPinning,
        *,
        yielding: bool,
        on_exit: Callable[[WorkerLife], None],
    ) -> WorkerLife:
        known = self._known.pop(name, None)
        if known is None:
            self._state.begun(incarnation)
        else:
            self.log(f"worker {name} on {known.host} (pid {known.ready.pid}) is taken over")
        return RayLife(
            name,
            incarnation if known is None else known.incarnation,
            self,
            yielding=yielding,
            ready_s=self._options.ready_timeout_s * (_STARTING_TAKES if yielding else 1),
            place_s=self._ray.place_s,
            on_exit=on_exit,
            known=known,
            channel=self._options.channel,
            clock=self._clock,
        )

    def clear(self, name: str, incarnation: int) -> None:
        self._state.ended(name, incarnation)

    def forget(self, name: str) -> None:
        self._quietly("forget", name)

    def close(self) -> None:
        self._bridge.close()
        self._state.close()

    def abandon(self) -> None:
        """Leaves workers to the next coordinator, or to the end of their lease."""

    # For lives

    def call(
        self,
        method: str,
        *arguments: object,
        timeout_s: float | None,
        off: Callable[[], bool] = lambda: False,
    ) -> Any:
        return self._bridge.call(method, *arguments, timeout_s=timeout_s, off=off)

    def runs(self, record: WorkerRecord) -> None:
        self._state.note(record)

    def _hosts(self) -> dict[str, str]:
        """Returns the hosts of the running workers, by name."""
        return {name: record.host.address for name, record in self._state.workers.items()}

    def _look_at(self, record: WorkerRecord) -> expert_pb2.StatusReply | None:
        """Returns the worker's status; None: it cannot be taken over."""
        if record.fingerprint != self._identity.fingerprint:
            self.log(f"worker {record.name} was started with other options: it is told to end")
            self._end(record)
            return None
        try:
            reply = ask_status(
                record.ready.target,
                f"worker {record.name}",
                _TAKE_OVER_S,
                security=self._options.channel,
            )
        except ColibriError as error:
            self.log(f"worker {record.name} of the last coordinator is not taken over: {error.message}")
            return None
        return reply if reply.incarnation == record.incarnation else None

    def _end(self, record: WorkerRecord) -> None:
        endpoint = WorkerEndpoint(record.name, record.incarnation, record.ready.target, self._options.channel)
        try:
            end_worker(endpoint, _TAKE_OVER_S, at_once=True)
        except ColibriError as error:
            self.log(f"worker {record.name} was not told to end: {error.message}")
        self._state.ended(record.name, record.incarnation)

    def _quietly(self, method: str, *arguments: object) -> None:
        try:
            self._bridge.call(method, *arguments, timeout_s=_CALL_S)
        except RayAway:
            pass  # what Ray had is gone with it
        except ColibriError as error:
            self.log(f"Ray: {method}: {error.message}")


def _travelling(options: LaunchOptions) -> LaunchOptions:
    """Returns what the hosts need of the options; nothing else leaves this machine. The secret goes with each start
    (actor.py).
    """
    tls = None if options.tls is None else replace(options.tls, channel=PLAIN)
    return replace(options, env=None, networks={}, run_folder_parent=None, tls=tls, secret=None)


def _fingerprint(options: LaunchOptions, ray: RayOptions) -> str:
    """Returns a text that is equal for options that make equal workers."""
    return hashlib.sha256(repr((options, ray.seating, ray.gpus)).encode()).hexdigest()
