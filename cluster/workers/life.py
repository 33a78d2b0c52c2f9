"""One life of a worker as its supervisor sees it, and who begins such lives: the part in which launchers differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from colibri.cluster.machine.pinning_plan import WorkerPlace
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
        """On its host; 0 until that is known."""
        ...

    @property
    def place(self) -> WorkerPlace:
        """As it was given; by a launcher that lets the host choose, known once it is ready."""
        ...

    @property
    def taken_over(self) -> bool:
        """Whether it ran before this process did: it may hold experts already."""
        ...

    @property
    def ended(self) -> bool: ...

    def wait_ready(self, timeout_s: float) -> Ready:
        """Raises WorkerLost (it ended first) or DeadlineExpired. Time that is spent before the process starts, on
        another clock, does not count."""
        ...

    def wait_exit(self, timeout_s: float | None = None) -> bool:
        """True once it has ended. None waits for as long as it lives."""
        ...

    def terminate(self) -> None:
        """Asks it to end and returns at once."""
        ...

    def kill(self) -> None:
        """Ends it where it stands and returns at once."""
        ...

    def stop(self, grace_s: float) -> None:
        """Ends it, after `grace_s` seconds by force. Returns when nothing is left of it, as far as it can be
        reached."""
        ...

    def lost(self, when: str) -> WorkerLost:
        """The error for its end, with how it ended and the last that it said."""
        ...


class LifeSource(Protocol):
    """Begins lives. Any thread may call; `begin` is called on a thread that outlives the life.

    wait_s: how long a life may take to find a place before its process starts. last_incarnation: the largest that was
    ever given, 0: none. `begin` may give a life that runs already, with an incarnation of its own.
    """

    @property
    def last_incarnation(self) -> int: ...

    @property
    def wait_s(self) -> float: ...

    def open(self, names: tuple[str, ...]) -> None:
        """Once, before anything begins; names: the workers of the start. Raises ColibriError."""
        ...

    def begin(
        self,
        name: str,
        incarnation: int,
        place: WorkerPlace,
        *,
        yielding: bool,
        on_exit: Callable[[WorkerLife], None],
    ) -> WorkerLife:
        """Returns at once. on_exit: called once, as soon as the end is known. Raises ColibriError or OSError."""
        ...

    def clear(self, name: str, incarnation: int) -> None:
        """What a life that has ended may have left on this machine goes away."""
        ...

    def forget(self, name: str) -> None:
        """No more lives under that name."""
        ...

    def close(self) -> None:
        """Nothing is left. May be called twice."""
        ...

    def abandon(self) -> None:
        """`close` for a signal handler, right before this process ends: takes no lock."""
        ...
