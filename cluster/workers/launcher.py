"""Launcher: keeps a deployment's workers running, wherever they run; workers may join and leave meanwhile.

Launchers differ only in who begins an incarnation (life.LifeSource): `local` and `ray`.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.workers.expert_calls import WorkerProgress
from colibri.cluster.workers.launch import LOADED, UP, LaunchOptions, WorkerState, WorkerStatus
from colibri.cluster.workers.life import LifeSource
from colibri.cluster.workers.membership import MembershipPublisher
from colibri.cluster.workers.worker_supervisor import SupervisorContext, WorkerSupervisor
from colibri.deadline import Clock, Deadline
from colibri.errors import InvalidInput, WorkerLost
from colibri.placement import Directory, Placement


class Launcher:
    """Starts one process per name in `placement.workers`, pinned as `pins` says, and keeps each running.

    `directory` follows them: a worker appears when it holds the experts that the placement gives it, and is gone
    milliseconds after its death. Incarnations are never given twice.

    milestone: hears UP when all workers have started, LOADED when all hold their experts.
    log: gets a line per event, and each line that a worker writes.

    These and `progress` are called from several threads.
    """

    def __init__(
        self,
        options: LaunchOptions,
        placement: Placement,
        pins: Sequence[WorkerPinning],
        source: LifeSource,
        *,
        progress: WorkerProgress = lambda worker, done, total, nbytes: None,
        milestone: Callable[[str], None] = lambda name: None,
        log: Callable[[str], None] = lambda line: None,
        clock: Clock = time.monotonic,
    ) -> None:
        if len(pins) != len(placement.workers):
            raise InvalidInput("pins", f"{len(placement.workers)}, one per worker", len(pins))
        self.publisher = MembershipPublisher(placement)
        self._options = options
        self._source = source
        self._opened = False
        self._first = dict(zip(placement.workers, pins, strict=True))
        self._progress = progress
        self._milestone = milestone
        self._log = log
        self._clock = clock
        self._incarnations = itertools.count(source.last_incarnation + 1)
        self._lock = threading.Lock()
        self._reached: dict[str, set[str]] = {UP: set(), LOADED: set()}
        self._supervisors: dict[str, WorkerSupervisor] = {}
        self._closed = False

    @property
    def directory(self) -> Directory:
        return self.publisher.directory

    def start(self) -> Directory:
        """Starts all workers. Returns when every worker serves its experts.

        Raises WorkerLost, DeadlineExpired or what loading failed with, after ending what had started.
        """
        try:
            self.spawn()
            return self.wait_serving()
        except BaseException:
            self.close()
            raise

    def spawn(self) -> None:
        """Begins to start all workers, so that the caller may do other work meanwhile."""
        if self._opened or self._closed:
            raise InvalidInput("launcher", "one that was never started", "one that was")
        self._source.open(tuple(self._first))
        self._opened = True
        for name, pin in self._first.items():
            self._add(name, pin, joins=False)

    def wait_serving(self) -> Directory:
        """Waits until every worker has loaded its experts. Raises as `start`, but ends nothing."""
        options = self._options
        bound = Deadline.after(
            self._source.wait_s + options.ready_timeout_s + options.load_timeout_s, self._clock
        )
        for name in self._first:
            self.wait_up(name, bound)
        return self.directory

    def add(self, name: str, pin: WorkerPinning) -> None:
        """Starts one more worker, which joins the directory when it is ready. Raises InvalidInput for a name that is
        taken, and after `close`.
        """
        self._add(name, pin, joins=True)

    def _add(self, name: str, pin: WorkerPinning, *, joins: bool) -> None:
        with self._lock:
            if self._closed or not self._opened:
                raise InvalidInput("launcher", "one that runs", "one that does not")
            if name in self._supervisors:
                raise InvalidInput("worker", "a name that is free", name)
            context = SupervisorContext(
                self._options,
                self.publisher,
                self._incarnations,
                self._source,
                lambda worker, done, total, nbytes: self._progress(worker, done, total, nbytes),
                self._reach,
                self._log,
                self._clock,
            )
            self._supervisors[name] = WorkerSupervisor(name, pin, context, joins=joins)

    def wait_up(self, name: str, deadline: Deadline) -> None:
        """Waits until the worker has served. Raises what its first start failed with, or WorkerLost."""
        with self._lock:
            supervisor = self._supervisors.get(name)
        if supervisor is None or not supervisor.up.wait(deadline.remaining(self._clock)):
            raise WorkerLost(f"worker {name} was not up in time", peer=name)
        if supervisor.failure is not None:
            raise supervisor.failure

    def is_up(self, name: str) -> bool:
        """Whether the worker has served. Raises what its first start failed with: it is not tried again and must be
        removed.
        """
        with self._lock:
            supervisor = self._supervisors.get(name)
        if supervisor is not None and supervisor.failure is not None:
            raise supervisor.failure
        return supervisor is not None and supervisor.up.is_set()

    def remove(self, name: str) -> None:
        """Ends a worker and forgets its name. Returns when nothing is left of it. Ignores unknown names."""
        with self._lock:
            supervisor = self._supervisors.get(name)
        if supervisor is not None:
            supervisor.leave()
            with self._lock:
                self._supervisors.pop(name, None)

    def status(self) -> tuple[WorkerStatus, ...]:
        """Returns the status of each worker, in the order of their names."""
        with self._lock:
            supervisors = list(self._supervisors.values())
        if not supervisors:
            return tuple(WorkerStatus(name, WorkerState.STOPPED, pin) for name, pin in self._first.items())
        return tuple(
            each.status for each in sorted(supervisors, key=lambda each: (len(each.name), each.name))
        )

    def pins(self) -> Mapping[str, WorkerPinning]:
        """Returns the pinning of each worker."""
        return {status.name: status.pin for status in self.status()}

    def close(self) -> None:
        """Ends every worker. Returns when nothing is left of them. May be called twice."""
        with self._lock:
            self._closed = True
            supervisors = list(self._supervisors.values())
        for supervisor in supervisors:
            supervisor.terminate()  # all at once, so that the graces run side by side
        for supervisor in supervisors:
            supervisor.stop()
        self._source.close()

    def abandon(self) -> None:
        """Ends workers from a signal handler, right before this process ends: takes no lock. They die with their
        parent.
        """
        self._source.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _reach(self, milestone: str, name: str) -> None:
        with self._lock:
            reached = self._reached[milestone]
            before = reached >= self._first.keys()
            reached.add(name)
            last = not before and reached >= self._first.keys()
        if last:
            self._milestone(milestone)
