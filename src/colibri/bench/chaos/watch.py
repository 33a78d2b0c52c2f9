"""The deployment as its own Operator service tells it, asked all the time; what changes is noted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from colibri.bench.chaos.operator import whats_missing
from colibri.bench.chaos.timeline import MomentKind, Timeline
from colibri.deadline import Clock
from colibri.errors import ColibriError
from colibri.v1 import operator_pb2 as pb

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Look:
    """asked: when, on the run's clock."""

    asked: float
    status: pb.ClusterStatusReply


class Watch:
    """A thread that asks; `stop` ends it."""

    def __init__(
        self,
        ask: Callable[[], pb.ClusterStatusReply],
        timeline: Timeline,
        clock: Clock,
        poll_s: float = POLL_S,
    ) -> None:
        self._ask = ask
        self._timeline = timeline
        self._clock = clock
        self._poll_s = poll_s
        self._latest: Look | None = None
        self._lives: dict[str, dict[int, None]] = {}
        self._reused: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        self._stopping.set()
        self._thread.join(timeout_s)

    def latest(self, asked_after: float) -> Look | None:
        """The newest answer to a question that was put after that time."""
        look = self._latest
        return look if look is not None and look.asked >= asked_after else None

    def missing(self, asked_after: float) -> str:
        """Why the deployment is not known to be whole; empty if it is."""
        look = self.latest(asked_after)
        return "it has not told its state since" if look is None else whats_missing(look.status)

    def lives(self) -> int:
        """Different (worker, incarnation) pairs seen."""
        return sum(len(lives) for lives in self._lives.values())

    def reused(self) -> list[str]:
        """Incarnations that came again after a later one, or that two workers had: there must be none."""
        return list(self._reused)

    def _run(self) -> None:
        answers = True
        while not self._stopping.is_set():
            asked = self._clock()
            try:
                status = self._ask()
            except ColibriError as error:
                if answers:
                    self._timeline.note(MomentKind.SEEN, f"no status: {error.message}")
                answers = False
            else:
                answers = True
                before = None if self._latest is None else self._latest.status
                self._note(before, status)
                self._latest = Look(asked, status)
            self._stopping.wait(self._poll_s)

    def _note(self, before: pb.ClusterStatusReply | None, now: pb.ClusterStatusReply) -> None:
        known = {} if before is None else {worker.name: worker for worker in before.workers}
        for worker in now.workers:
            self._count_life(worker)
            old = known.pop(worker.name, None)
            if old is None or (old.state, old.incarnation) != (worker.state, worker.incarnation):
                if before is not None:
                    text = f"{worker.name} {worker.state} (incarnation {worker.incarnation})"
                    self._timeline.note(MomentKind.SEEN, text, action=worker.state, worker=worker.name)
            elif old.health != worker.health:
                text = f"{worker.name} {worker.health} to the router"
                self._timeline.note(MomentKind.SEEN, text, action=worker.health, worker=worker.name)
        for name in known:
            self._timeline.note(MomentKind.SEEN, f"{name} is gone", action="gone", worker=name)
        if before is None:
            return
        if before.epoch != now.epoch:
            self._timeline.note(MomentKind.SEEN, f"placement epoch {now.epoch}", action="epoch")
        if now.last_change_error and now.last_change_error != before.last_change_error:
            self._timeline.note(MomentKind.SEEN, f"a change was taken back: {now.last_change_error}")

    def _count_life(self, worker: pb.WorkerInfo) -> None:
        if not worker.incarnation:
            return
        lives = self._lives.setdefault(worker.name, {})
        if worker.incarnation in lives:
            if worker.incarnation != next(reversed(lives)):
                self._reused.append(f"{worker.name}/{worker.incarnation}")
            return
        if any(worker.incarnation in others for others in self._lives.values()):
            self._reused.append(f"{worker.name}/{worker.incarnation}")
        lives[worker.incarnation] = None
