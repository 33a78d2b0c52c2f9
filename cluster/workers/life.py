"""One incarnation of a worker as its supervisor sees it, and who begins it: the only part in which launchers differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.workers.worker_process import Ready
from colibri.errors import WorkerLost


class WorkerLife(Protocol):
    """A worker process, wherever it runs. Every wait is bounded, every error names the worker."""

    @property
    def name(self) -> str: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def pid(self) -> int:
        """Its process id on its host; 0 until that is known."""
        ...

    @property
    def place(self) -> WorkerPinning:
        """Its pinning, as given; if the launcher lets the host choose, known once it is ready."""
        ...

    @property
    def taken_over(self) -> bool:
        """Whether it ran before this process did. Then it may hold experts already."""
        ...

    @property
    def ended(self) -> bool: ...

    def wait_ready(self, timeout_s: float) -> Ready:
        """Waits for the ready line. Raises WorkerLost if it ended first, or DeadlineExpired.

        Time before the process starts does not count: it has another bound.
        """
        ...

    def wait_exit(self, timeout_s: float | None = None) -> bool:
        """Waits for the end; None: without a bound. Returns whether it has ended."""
        ...

    def terminate(self) -> None:
        """Asks it to end and returns at once."""
        ...

    def kill(self) -> None:
        """Forces it to end, and returns at once."""
        ...

    def stop(self, grace_s: float) -> None:
        """Ends it, by force after `grace_s` seconds. Returns when nothing is left of it, as far as it can be
        reached.
        """
        ...

    def lost(self, when: str) -> WorkerLost:
        """Returns the error for its end, with how it ended and its last words."""
        ...


class LifeSource(Protocol):
    """Begins incarnations. Any thread may call; call `begin` on a thread that outlives the incarnation.

    wait_s: how long an incarnation may wait for a place before its process starts, seconds.
    last_incarnation: the largest number ever given; 0: none.

    `begin` may return an incarnation that runs already, with its own number.
    """

    @property
    def last_incarnation(self) -> int: ...

    @property
    def wait_s(self) -> float: ...

    def open(self, names: tuple[str, ...]) -> None:
        """Call once, before anything begins. names: the workers of the start. Raises ColibriError."""
        ...

    def begin(
        self,
        name: str,
        incarnation: int,
        place: WorkerPinning,
        *,
        yielding: bool,
        on_exit: Callable[[WorkerLife], None],
    ) -> WorkerLife:
        """Begins an incarnation, and returns at once. Raises ColibriError or OSError.

        on_exit: called once, as soon as the end is known.
        """
        ...

    def clear(self, name: str, incarnation: int) -> None:
        """Removes what an incarnation that has ended may have left on this machine."""
        ...

    def forget(self, name: str) -> None:
        """Begins nothing more under that name."""
        ...

    def close(self) -> None:
        """Ends everything. May be called twice."""
        ...

    def abandon(self) -> None:
        """Does as `close` from a signal handler, right before this process ends: takes no lock."""
        ...
