"""Progress of loading, on stderr and only when that is a terminal: a bar per task, painted by rich."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Loading:
    """A context in which `update` moves bars. Without a terminal it does nothing. Any thread may call
    `update`.

    rich itself obeys NO_COLOR and TERM.
    """

    def __init__(self, enabled: bool | None = None) -> None:
        self._enabled = sys.stderr.isatty() if enabled is None else enabled
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
            return
        with self._lock:
            if task not in self._tasks:
                self._tasks[task] = self._progress.add_task(task)
            self._progress.update(self._tasks[task], completed=done, total=max(total, 1))
