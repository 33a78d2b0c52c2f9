"""LocalLauncher: expert workers as subprocesses of this machine, started, watched, and started anew when they
die."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from colibri.cluster.child import WorkerProcess
from colibri.cluster.cpu_list import format_cpu_list
from colibri.cluster.expert_calls import WorkerProgress, load_experts
from colibri.cluster.launch import (
    LOADED,
    UP,
    LaunchOptions,
    WorkerState,
    WorkerStatus,
    worker_command,
)
from colibri.cluster.membership import MembershipPublisher
from colibri.cluster.pinning_plan import WorkerPin
from colibri.cluster.run_folder import RunFolder
from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError, InvalidInput, WorkerLost
from colibri.placement import Directory, Placement, WorkerEndpoint


@dataclass(slots=True)
class _Slot:
    """One worker by name, over all its lives."""

    index: int
    status: WorkerStatus
    process: WorkerProcess | None = None
    thread: threading.Thread | None = None
    failure: ColibriError | None = None
    loaded_once: threading.Event = field(default_factory=threading.Event)


class LocalLauncher:
    """Starts one process per name in `placement.workers`, pinned as `pins` says, and keeps it running.

    `directory` follows them: a worker appears when its experts are loaded and is gone milliseconds after its
    death. `milestone` hears UP when all workers have started, LOADED when all hold their experts; `log` gets
    one line per event and per line that a worker writes. They and `progress` are called from several threads.
    """

    def __init__(
        self,
        options: LaunchOptions,
        placement: Placement,
        pins: tuple[WorkerPin, ...],
        *,
        progress: WorkerProgress = lambda worker, done, total, nbytes: None,
        milestone: Callable[[str], None] = lambda name: None,
        log: Callable[[str], None] = lambda line: None,
        clock: Clock = time.monotonic,
    ) -> None:
        if len(pins) != len(placement.workers):
            raise InvalidInput("pins", f"{len(placement.workers)}, one per worker", len(pins))
        self._options = options
        self._placement = placement
        self._progress = progress
        self._milestone = milestone
        self._log = log
        self._clock = clock
        self._publisher = MembershipPublisher(placement)
        self._incarnations = itertools.count(1)
        self._lock = threading.Lock()
        self._reached: dict[str, set[int]] = {UP: set(), LOADED: set()}
        self._closing = threading.Event()
        self._folder: RunFolder | None = None
        self._slots = [
            _Slot(index, WorkerStatus(name, WorkerState.STOPPED, pin))
            for index, (name, pin) in enumerate(zip(placement.workers, pins, strict=True))
        ]

    @property
    def directory(self) -> Directory:
        return self._publisher.directory

    def start(self) -> Directory:
        """Returns when every worker serves its experts.

        Raises WorkerLost, DeadlineExpired or what loading failed with, after ending what had started.
        """
        try:
            self.spawn()
            return self.wait_serving()
        except BaseException:
            self.close()
            raise

    def spawn(self) -> None:
        """The first half of `start`: the workers are under way, and the caller may do other work
        meanwhile."""
        if self._folder is not None or self._closing.is_set():
            raise InvalidInput("launcher", "one that was never started", "one that was")
        self._folder = RunFolder(self._options.run_folder_parent)
        for slot in self._slots:
            slot.thread = threading.Thread(
                target=self._keep_running, args=(slot,), name=f"colibri-keep-{slot.status.name}", daemon=True
            )
            slot.thread.start()

    def wait_serving(self) -> Directory:
        """The second half: returns when every worker has loaded its experts, raises as `start` but ends
        nothing."""
        bound = Deadline.after(self._options.ready_timeout_s + self._options.load_timeout_s, self._clock)
        for slot in self._slots:
            if not slot.loaded_once.wait(bound.remaining(self._clock)):
                raise WorkerLost(f"worker {slot.status.name} was not up in time", peer=slot.status.name)
            if slot.failure is not None:
                raise slot.failure
        return self.directory

    def status(self) -> tuple[WorkerStatus, ...]:
        """Of each worker, in the placement's order."""
        with self._lock:
            return tuple(slot.status for slot in self._slots)

    def close(self) -> None:
        """Ends every worker and removes sockets and folder. Returns when nothing is left; may be called
        twice."""
        self._closing.set()
        with self._lock:
            running = [slot.process for slot in self._slots if slot.process is not None]
        for process in running:
            process.terminate()  # all at once, so that the graces run side by side
        for process in running:
            process.stop(self._options.stop_grace_s)
        for slot in self._slots:
            if slot.thread is not None:
                slot.thread.join(self._options.stop_grace_s + 15.0)
        if self._folder is not None:
            self._folder.close()

    def abandon(self) -> None:
        """For a signal handler, right before this process ends: takes no lock. The workers die with their
        parent."""
        if self._folder is not None:
            self._folder.close()

    def __enter__(self) -> LocalLauncher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep_running(self, slot: _Slot) -> None:
        """The whole life of a slot, on its own thread: which also is the parent that its workers die with."""
        try:
            self._live(slot)
        except Exception as error:  # a fault of ours must not leave `start` waiting
            name = slot.status.name
            slot.failure = ColibriError(f"worker {name} is not minded any more: {error!r}", peer=name)
            self._log(slot.failure.message)
        finally:
            self._note(slot, state=WorkerState.STOPPED)
            slot.loaded_once.set()

    def _live(self, slot: _Slot) -> None:
        name, backoff = slot.status.name, self._options.backoff_s
        while not self._closing.is_set():
            served_since = None
            try:
                process = self._spawn(slot)
                if process is None:
                    break
                self._bring_up(slot, process)
                served_since = self._clock()
                self._reach(LOADED, slot)
                slot.loaded_once.set()
                process.wait_exit()
                raise process.lost("while it served")
            except (ColibriError, OSError) as error:
                failure = (
                    error if isinstance(error, ColibriError) else WorkerLost(f"{name}: {error}", peer=name)
                )
            finally:
                self._end(slot)
            if self._closing.is_set():
                break
            if not slot.loaded_once.is_set():
                slot.failure = failure
                break
            if served_since is not None and self._clock() - served_since >= self._options.stable_s:
                backoff = self._options.backoff_s
            deaths = slot.status.deaths + 1
            self._note(slot, state=WorkerState.WAITING, deaths=deaths, last_error=failure.message)
            self._log(f"{failure.message}; starting it again in {backoff:g} s")
            self._closing.wait(backoff)
            backoff = min(2 * backoff, self._options.backoff_max_s)

    def _spawn(self, slot: _Slot) -> WorkerProcess | None:
        """None once the launcher closes: decided under the lock, so that `close` sees every process there
        is."""
        incarnation = next(self._incarnations)
        unix = self._options.transport == "unix"
        listen = f"unix:{self._socket(slot, incarnation)}" if unix else "127.0.0.1:0"
        argv = worker_command(self._options, slot.status.name, incarnation, listen, slot.status.pin)
        with self._lock:
            if self._closing.is_set():
                return None
            slot.process = WorkerProcess(
                slot.status.name,
                incarnation,
                argv,
                log=self._log,
                on_exit=self._ended,
                env=self._options.env,
            )
        self._note(slot, state=WorkerState.STARTING, incarnation=incarnation, pid=slot.process.pid, target="")
        return slot.process

    def _bring_up(self, slot: _Slot, process: WorkerProcess) -> None:
        name = process.name
        ready = process.wait_ready(self._options.ready_timeout_s)
        self._note(slot, state=WorkerState.LOADING, target=ready.target)
        self._reach(UP, slot)
        endpoint = WorkerEndpoint(name, process.incarnation, ready.target)
        try:
            reply = load_experts(
                endpoint,
                self._placement.experts_of(slot.index),
                self._placement.epoch,
                Deadline.after(self._options.load_timeout_s, self._clock),
                lambda done, total, nbytes: self._progress(name, done, total, nbytes),
            )
        except WorkerLost:
            if process.wait_exit(1.0):
                raise process.lost("while it loaded") from None  # says more than the broken connection does
            raise
        allowed = tuple(reply.cpus_allowed)
        if allowed != slot.status.pin.cpus:
            asked, got = format_cpu_list(slot.status.pin.cpus), format_cpu_list(allowed)
            self._log(f"worker {name}: asked for CPUs {asked}, the kernel gave {got}")
        self._note(
            slot,
            state=WorkerState.SERVING,
            cpus_allowed=allowed,
            oversubscribed=reply.oversubscribed,
            isa=reply.isa,
            experts=reply.experts_loaded,
            weight_bytes=reply.weight_bytes,
        )
        self._publisher.add(endpoint)
        if process.returncode is not None:  # it died before there was an endpoint to remove
            self._publisher.remove(name, process.incarnation)

    def _ended(self, process: WorkerProcess) -> None:
        self._publisher.remove(process.name, process.incarnation)

    def _end(self, slot: _Slot) -> None:
        if slot.process is None:
            return
        slot.process.stop(self._options.stop_grace_s)
        self._publisher.remove(slot.status.name, slot.process.incarnation)
        socket = self._socket(slot, slot.process.incarnation)
        with self._lock:
            slot.process = None
        socket.unlink(missing_ok=True)  # a killed worker could not

    def _socket(self, slot: _Slot, incarnation: int) -> Path:
        if self._folder is None:
            raise RuntimeError("the folder is made before any worker starts")
        return self._folder.path / f"{slot.index}.{incarnation}.sock"

    def _reach(self, milestone: str, slot: _Slot) -> None:
        with self._lock:
            reached = self._reached[milestone]
            before = len(reached)
            reached.add(slot.index)
            last = before < len(reached) == len(self._slots)
        if last:
            self._milestone(milestone)

    def _note(self, slot: _Slot, **changes: object) -> None:
        with self._lock:
            slot.status = replace(slot.status, **changes)  # type: ignore[arg-type]
