"""Show on stderr how far loading is: a bar for each task on a terminal, else a line of the log now and then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from colibri.deadline import Clock

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


#: Seconds between two lines of the log about the same task. Short loads write none.
_LINE_EVERY_S = 5.0


class Loading:
    """A context in which `update` shows how far a task is. Any thread may call `update`.

    rich itself obeys NO_COLOR and TERM.

    log: takes the lines where stderr is no terminal; None: drop them.
    enabled: whether to paint bars; None: where stderr is a terminal.
    """

    def __init__(
        self,
        log: Callable[[str], None] | None = None,
        *,
        enabled: bool | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._enabled = sys.stderr.isatty() if enabled is None else enabled
        self._log = log
        self._clock = clock
        self._begun = clock()
        #: By task: when a line about it was written last, and how many units it told.
        self._told: dict[str, tuple[float, int]] = {}
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Loading:
        if self._enabled:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description:<28}"),
                BarColumn(bar_width=32),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def update(self, task: str, done: int, total: int) -> None:
        """`task` has `done` of `total` units behind it; its bar appears with the first call."""
        if self._progress is None:
            self._write(task, done, total)
            return
        with self._lock:
            if task not in self._tasks:
                self._tasks[task] = self._progress.add_task(task)
            self._progress.update(self._tasks[task], completed=done, total=max(total, 1))

    def _write(self, task: str, done: int, total: int) -> None:
        if self._log is None:
            return
        now = self._clock()
        with self._lock:
            last, before = self._told.get(task, (self._begun, -1))
            ends = task in self._told and done >= total
            if done == before or (now - last < _LINE_EVERY_S and not ends):
                return
            self._told[task] = now, done
        self._log(f"{task}: {done} of {total}, {now - self._begun:.0f} s")
