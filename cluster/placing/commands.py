"""The commands of an operator, and how far each has got."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from colibri.cluster.experts.holders import ExpertId
from colibri.cluster.placing.desired import Desired
from colibri.cluster.placing.planner.problem import Loads
from colibri.cluster.placing.proposal import placed
from colibri.cluster.placing.rebalance_options import PlacementPolicy
from colibri.cluster.placing.transaction import Step
from colibri.deadline import Deadline
from colibri.errors import ColibriError, WorkerLost

#: Steps that are kept for a reader that does not read: the latest ones tell all.
_KEPT_STEPS = 64


class Command(Protocol):
    """A command. `apply` is pure; it raises InvalidInput or WorkerLost if the command is impossible."""

    @property
    def text(self) -> str: ...

    def apply(self, desired: Desired, alive: frozenset[str]) -> Desired: ...


@dataclass(frozen=True, slots=True)
class Drain:
    """Takes a worker out, or brings it back; all workers of a host if `worker` is empty."""

    worker: str
    undo: bool = False
    host: str = ""

    @property
    def text(self) -> str:
        what = self.worker or f"--host {self.host}"
        return f"drain {what}{' --undo' if self.undo else ''}"

    def apply(self, desired: Desired, alive: frozenset[str]) -> Desired:
        if self.host:
            return desired.undrain_host(self.host) if self.undo else desired.drain_host(self.host)
        return desired.undrain(self.worker) if self.undo else desired.drain(self.worker)


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the number of workers."""

    workers: int

    @property
    def text(self) -> str:
        return f"scale {self.workers}"

    def apply(self, desired: Desired, alive: frozenset[str]) -> Desired:
        return desired.scale(self.workers, alive)


@dataclass(frozen=True, slots=True)
class Move:
    """Moves an expert, adds a holder (no source) or drops one (no target)."""

    expert: ExpertId
    to: str = ""
    source: str = ""

    @property
    def text(self) -> str:
        layer, expert = self.expert
        to, source = self.to and f" --to {self.to}", self.source and f" --from {self.source}"
        return f"move {layer}:{expert}{to}{source}"

    def apply(self, desired: Desired, alive: frozenset[str]) -> Desired:
        moved = desired.move(self.expert, self.to, self.source)
        layer, expert = self.expert
        if self.to and self.to not in alive:
            raise WorkerLost(f"worker {self.to} is not alive now, so that it can load nothing", peer=self.to)
        if not alive.intersection(moved.holders[layer][expert]):
            left = ", ".join(moved.holders[layer][expert])
            raise WorkerLost(f"expert {layer}:{expert} would have no living holder: {left}", peer=self.source)
        return moved


@dataclass(frozen=True, slots=True)
class Place:
    """Plans anew for loads and moves experts accordingly. policy: which changes are worth it."""

    loads: Loads
    policy: PlacementPolicy

    @property
    def text(self) -> str:
        return "place"

    def apply(self, desired: Desired, alive: frozenset[str]) -> Desired:
        return placed(desired, self.loads, self.policy)


class Ticket:
    """A command in progress. One thread works on it, another reads its steps."""

    def __init__(self, command: Command, deadline: Deadline) -> None:
        self.command = command
        self.deadline = deadline
        self._changed = threading.Condition()
        self._steps: deque[Step] = deque(maxlen=_KEPT_STEPS)
        self._ended = False
        self._error: ColibriError | None = None

    def report(self, step: Step) -> None:
        with self._changed:
            self._steps.append(step)
            self._changed.notify_all()

    def end(self, error: ColibriError | None = None) -> None:
        """Ends it; only the first call counts."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
                self._changed.notify_all()

    def steps(self, timeout_s: float) -> Iterator[Step | None]:
        """Yields its steps as they come, to its end; None whenever none came for `timeout_s` seconds. Raises what it
        failed with.
        """
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._steps or self._ended, timeout_s)
                step = self._steps.popleft() if self._steps else None
                if step is None and self._ended:
                    if self._error is not None:
                        raise self._error
                    return
            yield step
