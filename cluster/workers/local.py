"""LocalLauncher: expert workers as subprocesses of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.workers.expert_calls import WorkerProgress
from colibri.cluster.workers.launch import LaunchOptions, worker_command
from colibri.cluster.workers.launcher import Launcher
from colibri.cluster.workers.life import WorkerLife
from colibri.cluster.workers.run_folder import RunFolder
from colibri.cluster.workers.worker_process import WorkerProcess
from colibri.deadline import Clock
from colibri.errors import InvalidInput
from colibri.placement import Placement


class LocalLauncher(Launcher):
    """Runs each worker as its pinning says. The folder of its sockets is gone when it closes."""

    def __init__(
        self,
        options: LaunchOptions,
        placement: Placement,
        pins: Sequence[WorkerPinning],
        *,
        progress: WorkerProgress = lambda worker, done, total, nbytes: None,
        milestone: Callable[[str], None] = lambda name: None,
        log: Callable[[str], None] = lambda line: None,
        clock: Clock = time.monotonic,
    ) -> None:
        source = Subprocesses(options, log)
        super().__init__(
            options, placement, pins, source, progress=progress, milestone=milestone, log=log, clock=clock
        )


class Subprocesses:
    """A LifeSource on this machine. A worker dies with the thread that began it (PR_SET_PDEATHSIG)."""

    wait_s = 0.0
    last_incarnation = 0

    def __init__(self, options: LaunchOptions, log: Callable[[str], None]) -> None:
        self._options = options
        self._log = log
        self._folder: RunFolder | None = None

    def open(self, names: tuple[str, ...]) -> None:
        self._folder = RunFolder(self._options.run_folder_parent)
        if self._options.transport == "unix":
            self._folder.check_sockets(names)

    def begin(
        self,
        name: str,
        incarnation: int,
        place: WorkerPinning,
        *,
        yielding: bool,
        on_exit: Callable[[WorkerLife], None],
    ) -> WorkerLife:
        argv = worker_command(
            self._options, name, incarnation, self._socket(name, incarnation), place, yielding=yielding
        )
        return WorkerProcess(
            name,
            incarnation,
            argv,
            log=self._log,
            on_exit=on_exit,
            env=self._options.env,
            place=place,
            secret=self._options.handed_secret,
        )

    def clear(self, name: str, incarnation: int) -> None:
        """Removes the socket that a killed worker could not remove."""
        if self._folder is not None:
            self._socket(name, incarnation).unlink(missing_ok=True)

    def forget(self, name: str) -> None:
        pass

    def close(self) -> None:
        if self._folder is not None:
            self._folder.close()

    def abandon(self) -> None:
        self.close()

    def _socket(self, name: str, incarnation: int) -> Path:
        if self._folder is None:
            raise InvalidInput("launcher", "one that was started", "one that was not")
        return self._folder.socket(name, incarnation)
