"""One chaos run: the load goes on, the plan's events happen in their order, what they left behind is put right.

The main thread acts; changes of the placement, which take seconds, have a thread of their own, one after
another; another one watches the deployment.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from colibri.bench.chaos.injector import Injector
from colibri.bench.chaos.network.base import Network
from colibri.bench.chaos.operator import Operator, in_use
from colibri.bench.chaos.plan import CHANGES, Action, Plan
from colibri.bench.chaos.resources import Held, Sampler
from colibri.bench.chaos.schedule import Scheduled, end_s, schedule
from colibri.bench.chaos.timeline import Moment, MomentKind, Timeline
from colibri.bench.chaos.watch import Watch
from colibri.bench.chaos.worker_faults import WorkerFaults
from colibri.bench.load.record import RequestRecord
from colibri.bench.load.runner import LoadRun
from colibri.deadline import Clock
from colibri.errors import ColibriError
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.v1 import operator_pb2 as pb

#: A look at the deployment must be so much younger than the last event: it takes a moment to show.
_SHOWS_AFTER_S = 0.25
_TICK_S = 0.01
#: Load after the last event, so that what it broke could show.
_TAIL_S = 2.0
_STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class ChaosResult:
    """quiet: begin and end of the phase without events, absolute as all times of records are; begun, ended:
    of the phases with events. events: done, by action; failed_events: those that could not be. injected:
    faults that acted, by action. routing: the router's sums, over this run. problem: why the deployment did
    not come back, or empty."""

    plan: Plan
    started: float
    quiet: tuple[float, float]
    ended: float
    moments: tuple[Moment, ...]
    records: tuple[RequestRecord, ...]
    events: Mapping[Action, int]
    failed_events: int
    injected: Mapping[Action, int]
    routing: Mapping[str, float]
    lives: int
    reused: tuple[str, ...]
    samples: tuple[tuple[float, Held], ...]
    problem: str


@dataclass(order=True, slots=True)
class _Undo:
    at: float
    order: int
    event: Scheduled = field(compare=False)
    worker: str = field(compare=False)
    act: Callable[[], str] = field(compare=False)


class ChaosRun:
    """Runs once. load: not started yet. coordinator_pid: whose resources are sampled, if it is known. workers: how
    their own calls are made."""

    def __init__(
        self,
        plan: Plan,
        operator: Operator,
        load: LoadRun,
        network: Network | None = None,
        *,
        coordinator_pid: int | None = None,
        workers: ChannelSecurity = PLAIN,
        heard: Callable[[Moment], None] = lambda moment: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._plan = plan
        self._operator = operator
        self._load = load
        self._clock = clock
        self._timeline = Timeline(clock, heard)
        self._watch = Watch(operator.status, self._timeline, clock)
        self._faults = WorkerFaults(workers)
        quality = None if plan.network is None else plan.network.quality
        self._injector = Injector(operator, self._faults, network, quality)
        self._sampler = None if coordinator_pid is None else Sampler(coordinator_pid, clock)
        self._undos: list[_Undo] = []
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._changes: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._busy_changes = 0
        self._last_act = clock()
        self._done: dict[Action, int] = {}
        self._failed = 0
        self._problem = ""
        self._stop = threading.Event()

    def run(self) -> ChaosResult:
        """Raises ColibriError when the deployment does not answer at the start, or the load cannot go on."""
        before = self._operator.status()
        changer = threading.Thread(target=self._change, name="chaos-changes", daemon=True)
        self._watch.start()
        try:
            if missing := self._settle():
                raise ColibriError(f"the deployment is not whole at the start: {missing}")
            if self._sampler is not None:
                self._sampler.start()
            changer.start()
            with self._load as load:
                self._timeline.restart()
                started = self._clock()
                self._timeline.note(MomentKind.PHASE, f"quiet for {self._plan.quiet_s:g} s", action="quiet")
                quiet_until = self._go(started)
                problem = self._problem or self._put_right()
                self._pause(_TAIL_S)
                ended = self._clock()
                load.stop(self._plan.load.request_timeout_s)
                result = load.wait(self._plan.load.request_timeout_s + _STOP_S)
            after = self._operator.status()
        finally:
            self._put_right(wait=False)
            self._changes.put(None)
            if changer.is_alive():
                changer.join(_STOP_S)
            self._watch.stop()
            samples = () if self._sampler is None else self._sampler.stop()
        return ChaosResult(
            plan=self._plan,
            started=started,
            quiet=(started, quiet_until),
            ended=ended,
            moments=self._timeline.moments(),
            records=result.records,
            events=dict(self._done),
            failed_events=self._failed,
            injected=self._faults.injected(),
            routing=_difference(before, after),
            lives=self._watch.lives(),
            reused=tuple(self._watch.reused()),
            samples=samples,
            problem=problem,
        )

    def _go(self, started: float) -> float:
        """All events; returns when the quiet phase ended."""
        waiting = list(schedule(self._plan))[::-1]
        phase, quiet_until = "", started + self._plan.quiet_s
        end = started + end_s(self._plan)
        while not self._stop.is_set():
            now = self._clock()
            self._undo_due(now)
            if waiting and now >= started + waiting[-1].at_s and self._ready(waiting[-1], started):
                event = waiting.pop()
                if event.phase != phase:
                    phase = event.phase
                    self._timeline.note(MomentKind.PHASE, phase, action=phase)
                self._act(event)
            elif not (waiting or self._undos or self._busy_changes) and now >= end:
                break
            else:
                self._stop.wait(_TICK_S)
        return quiet_until

    def _ready(self, event: Scheduled, started: float) -> bool:
        """Whether nothing has to come back first. After the plan's time for that the run ends."""
        missing = self._missing() if event.spec.alone else self._too_few(event.spec.leaving)
        if not missing:
            return True
        if self._clock() - max(started + event.at_s, self._last_act) > self._plan.settle_s:
            word = event.spec.action.value
            self._problem = f"no {word} was possible within {self._plan.settle_s:g} s: {missing}"
            self._fail(event, self._problem)
            self._stop.set()
        return False

    def _missing(self) -> str:
        if self._undos:
            return "an earlier event is still in force"
        if self._busy_changes:
            return "a change is under way"
        return self._watch.missing(self._last_act + _SHOWS_AFTER_S)

    def _too_few(self, leaving: int) -> str:
        """Why an event may not take one more worker away; empty if it may."""
        if not leaving:
            return ""
        look = self._watch.latest(self._last_act + _SHOWS_AFTER_S)
        if look is None:
            return "it has not told its state since"
        count = len(in_use(look.status))
        return "" if count > leaving else f"{count} workers serve, {leaving} others must"

    def _act(self, event: Scheduled) -> None:
        if event.spec.action not in CHANGES:
            self._do(event)
            return
        self._timeline.note(
            MomentKind.SEEN, f"{event.spec.action.value} begins", action=event.spec.action.value
        )
        self._in_turn(lambda: self._do(event))

    def _do(self, event: Scheduled) -> None:
        action = event.spec.action
        try:
            done = self._injector.act(event)
        except ColibriError as error:
            self._fail(event, f"{action.value}: {error.message}")
            return
        with self._lock:
            self._done[action] = self._done.get(action, 0) + 1
            self._last_act = self._clock()
            self._timeline.note(
                MomentKind.EVENT, done.text, action=action.value, worker=done.worker, number=event.number
            )
            if done.undo is not None:
                at = self._clock() + (event.spec.for_s or 0.0)
                heapq.heappush(self._undos, _Undo(at, next(self._order), event, done.worker, done.undo))

    def _undo_due(self, now: float) -> None:
        while True:
            with self._lock:
                if not self._undos or self._undos[0].at > now:
                    return
                undo = heapq.heappop(self._undos)
            if undo.event.spec.action in CHANGES:
                self._in_turn(lambda undo=undo: self._undo(undo))  # type: ignore[misc]
            else:
                self._undo(undo)

    def _undo(self, undo: _Undo) -> None:
        action, number = undo.event.spec.action.value, undo.event.number
        try:
            text, kind = undo.act(), MomentKind.UNDO
        except (ColibriError, KeyError) as error:
            # The worker's life that it was about is over, most often.
            text, kind = f"{action} of {undo.worker} could not be undone: {error}", MomentKind.SEEN
        with self._lock:
            self._last_act = self._clock()
        self._timeline.note(kind, text, action=action, worker=undo.worker, number=number)

    def _fail(self, event: Scheduled, text: str) -> None:
        with self._lock:
            self._failed += 1
        self._timeline.note(MomentKind.FAILED, text, action=event.spec.action.value, number=event.number)

    def _in_turn(self, act: Callable[[], None]) -> None:
        with self._lock:
            self._busy_changes += 1
        self._changes.put(act)

    def _change(self) -> None:
        while (act := self._changes.get()) is not None:
            try:
                act()
            finally:
                with self._lock:
                    self._busy_changes -= 1

    def _put_right(self, *, wait: bool = True) -> str:
        """Undoes all that is in force; returns what is missing then."""
        self._undo_due(float("inf"))
        self._faults.clear()
        return self._settle() if wait else ""

    def _settle(self) -> str:
        """Waits until the deployment is whole; returns what is missing after the plan's time for that."""
        until = self._clock() + self._plan.settle_s
        while (missing := self._missing()) and self._clock() < until:
            time.sleep(_TICK_S)
        return missing

    def _pause(self, seconds: float) -> None:
        if not self._stop.is_set():
            self._stop.wait(seconds)


def _difference(before: pb.ClusterStatusReply, after: pb.ClusterStatusReply) -> dict[str, float]:
    names = [field.name for field in pb.RoutingInfo.DESCRIPTOR.fields if field.name != "balance"]
    found = {name: getattr(after.routing, name) - getattr(before.routing, name) for name in names}
    return {**found, "balance": after.routing.balance}
