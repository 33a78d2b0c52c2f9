"""Reconciler: brings the actual state towards the wanted one, one change at a time. Belongs to one thread.

Commands change what is wanted (desired.py); deaths and returns of workers change what is. Most urgent first: if no
live worker holds an expert, survivors load it at once, at full speed, whatever else is in progress. Everything else
happens beside requests, at a low CPU priority.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Protocol

from colibri.cluster.experts.holders import ExpertId, Holders, as_placement, copies, holders_of, lost_experts
from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.placing.change import plan_change
from colibri.cluster.placing.commands import Ticket
from colibri.cluster.placing.desired import Desired, in_order
from colibri.cluster.placing.retry import Retry
from colibri.cluster.placing.target import next_holders
from colibri.cluster.placing.transaction import (
    Interrupted,
    PhaseBounds,
    Report,
    Step,
    answering,
    retire,
    run_change,
)
from colibri.cluster.placing.worker_facts import worker_facts
from colibri.cluster.workers.launch import WorkerStatus
from colibri.cluster.workers.membership import MembershipPublisher
from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError, ShuttingDown
from colibri.placement import Membership

_JOIN_S = 0.05
#: After it, no load that was called off is still at an expert.
_LATE_LOADS_S = 5.0
#: A worker that gives no status within so many seconds is not asked to load what others have lost.
_RESCUERS_ANSWER_S = 0.5


class Workforce(Protocol):
    """Starts and ends workers (colibri.cluster.workers.launcher.Launcher)."""

    @property
    def publisher(self) -> MembershipPublisher: ...

    def add(self, name: str, pin: WorkerPinning) -> None: ...

    def is_up(self, name: str) -> bool: ...

    def remove(self, name: str) -> None: ...

    def pins(self) -> Mapping[str, WorkerPinning]: ...

    def status(self) -> Sequence[WorkerStatus]: ...


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """Bounds and waits, in seconds.

    absent_after_s: a worker that is dead for longer is not waited for: others hold its share until it is back.
    start_s: a new worker's time to come up.
    retry_s, retry_max_s: wait after a failed change, doubled from failure to failure.
    command_s: for a command without a bound of its own.
    memory: bytes of experts that each worker may hold; None: no limit.
    """

    bounds: PhaseBounds = field(default_factory=PhaseBounds)
    absent_after_s: float = 30.0
    start_s: float = 300.0
    retry_s: float = 0.5
    retry_max_s: float = 10.0
    command_s: float = 3600.0
    memory: int | None = None


class Reconciler:
    """closing: ends whatever waits, with ShuttingDown. `change`, `last_error`: for status; any thread may read them."""

    def __init__(
        self,
        workforce: Workforce,
        desired: Desired,
        options: ManagerOptions,
        closing: threading.Event,
        log: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self.desired = desired
        self.change = ""
        self.last_error = ""
        self._workforce = workforce
        self._publisher = workforce.publisher
        self._options = options
        self._closing = closing
        self._log = log
        self._clock = clock
        self._epoch = self._publisher.current.placement.epoch
        self._looked_at: Membership | None = None
        self._lost = False
        self._gone_since: dict[str, float] = {}
        self._settled: tuple[object, ...] | None = None
        #: When a change began that may have left something behind.
        self._untidy_since: float | None = None
        self._retry = Retry(options.retry_s, options.retry_max_s, clock)
        self._rescue_retry = Retry(options.retry_s, options.retry_max_s, clock)
        self._tidy_retry = Retry(options.retry_s, options.retry_max_s, clock)

    @property
    def epoch(self) -> int:
        """The epoch in force."""
        return self._publisher.current.placement.epoch

    def settle(self) -> bool:
        """Does what deaths, returns and failed commands call for, as far as possible now. Returns False to be called
        again at once.
        """
        membership, desired, absent = self._publisher.current, self.desired, self.absent()
        state = (membership, desired, *sorted(absent))
        if _same(state, self._settled) or not self._retry.may(*state):
            self.tidy_up()
            return True
        try:
            reached = self.converge(absent)
        except ShuttingDown:
            raise
        except ColibriError as error:
            self.failed(error)
            wait_s = self._retry.failed(*state)
            self._log(f"placement: {error.message}; trying again in {wait_s:g} s")
            return True
        if not reached:
            return False
        self._retry.succeeded()
        self._settled = state
        self.let_go()
        self.tidy_up()
        return True

    def let_go(self) -> None:
        """Ends workers that are not wanted and hold nothing, all at once."""
        placement = self._publisher.current.placement
        needed = {*copies(holders_of(placement)), *self.desired.workers}
        threads = [
            threading.Thread(target=self._workforce.remove, args=(name,), name=f"colibri-end-{name}")
            for name in self._workforce.pins()
            if name not in needed
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(_JOIN_S)
                if self.urgent():
                    self.rescue()

    def converge(self, absent: frozenset[str], ticket: Ticket | None = None) -> bool:
        """Makes one change towards what is wanted. Returns whether that is reached, as far as live workers allow.

        Raises what the change failed with.
        """
        if self.urgent():
            self.rescue()
        membership = self._publisher.current
        current = holders_of(membership.placement)
        wanted = self.desired.without(absent)
        alive, homes = frozenset(membership.endpoints), self.desired.homes
        target = next_holders(wanted, current, alive, self._order(membership), homes=homes)
        if target == current and self._loads_in_force(membership):
            return True
        try:
            self._run_change(membership, target, ticket, yielding=True, absent=absent)
        except Interrupted:
            if self._closing.is_set():
                raise ShuttingDown("the deployment is shutting down") from None
            back = absent.intersection(self.alive())
            if back:
                self._log(f"placement: {', '.join(sorted(back))} is back: no copies are made in its place")
        return False

    def rescue(self) -> None:
        """Has survivors load, at full speed, experts that no live worker holds and they may hold."""
        membership = self._publisher.current
        alive = frozenset(membership.endpoints)
        current = holders_of(membership.placement)
        lost = len(self._lost_to(current, alive))
        # One that hangs would hold up all.
        able = answering(membership.endpoints, _RESCUERS_ANSWER_S) or alive
        target = next_holders(current, current, alive, self._order(membership), able, self.desired.homes)
        self._log(f"placement: {lost} experts have no living holder; {', '.join(sorted(able))} load them")
        try:
            self._run_change(membership, target, None, yielding=False)
        except Interrupted:
            raise ShuttingDown("the deployment is shutting down") from None
        except ColibriError as error:
            self.failed(error)
            wait_s = self._rescue_retry.failed(membership)
            self._log(
                f"placement: {lost} experts stay without a holder: {error.message};"
                f" trying again in {wait_s:g} s"
            )
        else:
            self._rescue_retry.succeeded()

    def _run_change(
        self,
        membership: Membership,
        target: Holders,
        ticket: Ticket | None,
        *,
        yielding: bool,
        absent: frozenset[str] = frozenset(),
    ) -> None:
        old = membership.placement
        self._epoch = max(self._epoch, old.epoch) + 1
        order, desired = self._order(membership), self.desired
        speeds = None if desired.loads is None else desired.speeds(order)
        new = as_placement(target, order, self._epoch, desired.loads, speeds)
        for layer in range(new.layers):
            new.division(layer)  # made here, so that no request waits for it
        change = plan_change(old, new, frozenset(membership.endpoints))
        self._untidy_since = self._clock()
        try:
            clean = run_change(
                change,
                self._publisher,
                self._options.bounds,
                Deadline() if ticket is None else ticket.deadline,
                yielding=yielding,
                interrupted=lambda: self._interrupted(rescuing=not yielding),
                report=self.reporter(ticket),
                clock=self._clock,
                absent=absent,
            )
        finally:
            self.change = ""
        if clean:
            self._untidy_since = None
        loads = f", {change.experts_to_load} experts loaded" if change.experts_to_load else ""
        self._log(f"placement: epoch {new.epoch} is in force{loads}")

    def tidy_up(self) -> None:
        """Removes what changes left behind, because they failed or a worker did not answer."""
        since = self._untidy_since
        if since is None and any(status.surplus for status in self._workforce.status()):
            since = self._untidy_since = (
                self._clock() - 2 * _LATE_LOADS_S
            )  # nothing of ours is still under way
        if since is None or not self._tidy_retry.may():
            return
        bounds = replace(self._options.bounds, retire_s=0.0)
        begun = self._clock()
        clean = retire(self._publisher, bounds, self._interrupted, lambda step: None)
        # A load that was called off ends with the expert it was at: the look that counts comes a while after.
        if clean and begun - since > _LATE_LOADS_S:
            self._untidy_since = None
            self._tidy_retry.succeeded()
        else:
            self._tidy_retry.failed()

    # Small things

    def informed(self) -> Desired:
        """Returns what is wanted, with what is known of the workers now."""
        membership = self._publisher.current
        names = {*self.desired.workers, *membership.endpoints}
        facts = worker_facts(names, membership.endpoints, self._workforce.pins(), self._options.memory)
        return replace(self.desired, facts={**self.desired.facts, **facts})

    def wish(self, desired: Desired) -> None:
        """Sets what is wanted from now on."""
        self.desired = desired
        self._settled = None

    def failed(self, error: ColibriError) -> None:
        self.last_error = error.message

    def alive(self) -> frozenset[str]:
        return frozenset(self._publisher.current.endpoints)

    def _order(self, membership: Membership) -> tuple[str, ...]:
        return in_order({*copies(holders_of(membership.placement)), *self.desired.workers})

    def urgent(self) -> bool:
        """Whether experts are lost and something can be done about it now."""
        membership = self._publisher.current
        if self._looked_at is not membership:  # once per snapshot: this is asked often
            alive = frozenset(membership.endpoints)
            lost = self._lost_to(holders_of(membership.placement), alive)
            self._looked_at, self._lost = membership, bool(lost)
        return self._lost and self._rescue_retry.may(membership)

    def _lost_to(self, holders: Holders, alive: frozenset[str]) -> list[ExpertId]:
        """Returns the experts that no live worker holds although one could."""
        homes = self.desired.homes
        able = None if homes is None else {homes.of(name) for name in alive}
        return [
            (layer, expert)
            for layer, expert in (lost_experts(holders, alive) if alive else [])
            if able is None or homes is None or homes.experts[expert] in able
        ]

    def _loads_in_force(self, membership: Membership) -> bool:
        placement, desired = membership.placement, self.desired
        if desired.loads is None:
            return placement.loads is None
        return placement.loads == desired.loads and placement.speeds == desired.speeds(placement.workers)

    def _interrupted(self, rescuing: bool = False) -> bool:
        return self._closing.is_set() or (not rescuing and self.urgent())

    def absent(self) -> frozenset[str]:
        """Returns the workers that have been dead too long to wait for."""
        alive, now = self.alive(), self._clock()
        self._gone_since = {
            name: self._gone_since.get(name, now) for name in self.desired.workers if name not in alive
        }
        bound = self._options.absent_after_s
        return frozenset(name for name, since in self._gone_since.items() if now - since >= bound)

    def reporter(self, ticket: Ticket | None) -> Report:
        def report(step: Step) -> None:
            experts = f" ({step.experts_done} of {step.experts_total} experts)" if step.experts_total else ""
            self.change = f"{step.phase}: {step.text}{experts}"
            if ticket is not None:
                ticket.report(step)

        return report


def _same(state: tuple[object, ...], other: tuple[object, ...] | None) -> bool:
    """Compares by identity: snapshots never change, and comparing them in depth is slow."""
    return other is not None and len(state) == len(other) and all(map(is_, state, other))
