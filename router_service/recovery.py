"""Finish an exchange after a message was late, lost or refused: send only the unanswered units again.

Each task is looked at without waiting, again and again, until all are settled:
* a late message is hedged;
* a message past its deadline goes to another holder, and may still win;
* a failed message goes to another holder;
* if no holder is left, the units wait until the directory names one.
In between, waits are slices so short that no message delays another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from colibri.errors import Busy, ColibriError, DeadlineExpired, WorkerLost
from colibri.router_service.exchange import Exchange, NotConnected
from colibri.router_service.plan_types import NOBODY
from colibri.router_service.replan import replan
from colibri.router_service.routing import EJECTED, READY, Routes, stand_ins
from colibri.router_service.stats import RoutingEvents
from colibri.router_service.task import Split, Task, Waiting

#: Longest wait for one message while others are under way, seconds.
SLICE_S = 0.001
#: Longest wait for news without looking again, seconds.
_LOOK_S = 0.05
#: Messages sent for one dispatch: more means that nothing ever works.
MAX_ATTEMPTS = 200
#: Advice when nobody held an expert for all the time: about what loading takes.
_RETRY_AFTER_S = 1.0


class Recovery:
    """Settles all tasks of an exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._context = exchange.context
        self._fleet = exchange.context.fleet
        self._clock = exchange.context.clock
        self._polled = 0
        self._again = False
        self._counted_wait = False

    def run(self) -> None:
        tasks = self._exchange.tasks
        while True:
            events = self._fleet.events
            self._again = False
            if self._look(tasks):
                return
            if self._exchange.expired():
                self._expire()
                return
            if not self._again:
                self._pause(events)

    # One look at a task

    def _look(self, tasks: list[Task]) -> bool:
        """Looks at each task. Returns whether all are settled."""
        settled = True
        for task in tasks:
            settled = self._advance(task) and settled
        return settled

    def _advance(self, task: Task) -> bool:
        """Returns whether the task is settled now."""
        if task.settled:
            return True
        if task.message is not None:
            now = self._clock()
            if task.connection.wait(task.message, now):
                # However short the looks, it was waited for.
                if self._exchange.take(task, 0.0):
                    self._answered(task)
                    return True
            elif now >= task.deadline_at:
                self._overdue(task, now)
            elif now >= task.hedge_at:
                task.hedge_at = math.inf
                self._hedge(task, now)
        if task.settled:
            return True
        if task.other is not None:
            return self._advance_other(task, task.other)
        if task.message is None:
            self._send_again(task)
        return task.settled

    def _answered(self, task: Task) -> None:
        other, task.other = task.other, None
        if other is not None:
            for child in other.tasks:
                child.drop()

    def _advance_other(self, task: Task, other: Split) -> bool:
        if not self._look(other.tasks):
            return False
        message = task.message
        if message is None:
            task.settled = True
            return True
        if any(child.failed for child in other.tasks):
            if other.hedge:
                task.other = None  # the message may still be answered, or pass its deadline
            return False
        if other.hedge:
            self._context.happened.add(RoutingEvents(hedges_won=1))
            self._fleet.lost_hedge(task.peer)
        # How long it would have taken is not known, only that it is longer.
        task.window.add(self._clock() - message.sent_at, True)
        task.drop()
        task.settled = True
        return True

    # Elsewhere

    def _hedge(self, task: Task, now: float) -> None:
        """Sends a late message to others as well, if all its units have a ready holder and the budget allows it."""
        if task.other is not None or task.spare is not None:
            return
        if task.peer.queue.grows or now < task.peer.busy_until:
            return
        routes = self._routes()

        def usable(worker: int) -> int | None:
            peer = routes.peers[worker]
            if routes.ranks[worker] != READY or peer is None or peer is task.peer or peer.queue.grows:
                return None
            return None if now < peer.busy_until or self._barred(task, routes, worker, now) else READY

        found = self._find(task, routes, usable)
        targets = set(found.values())
        if NOBODY in targets:
            return
        context = self._context
        if not context.budget.take(context.times.snapshot().messages, len(targets)):
            return
        context.happened.add(RoutingEvents(hedges=len(targets)))
        self._split(task, routes, found, hedge=True)

    def _overdue(self, task: Task, now: float) -> None:
        """Gives the units of an overdue message to another holder. The first answer counts."""
        message, context = task.message, self._context
        if message is None:
            return
        ceiling_at = message.sent_at + context.policy.deadline_ceiling_s
        if not task.overdue:
            task.overdue = True
            context.happened.add(RoutingEvents(timeouts=1))
        if context.policy.failover and task.connection.is_hung(message, now):
            self._fleet.eject(task.peer)
        if now >= ceiling_at:
            task.connection.time_out(message)
            return
        task.deadline_at = min(now + _LOOK_S, ceiling_at)
        if task.other is None and context.policy.failover:
            task.bar(task.connection, None)
            routes = self._routes()
            found = self._find(task, routes, lambda worker: self._usable(task, routes, worker, now))
            if set(found.values()) != {NOBODY}:
                self._split(task, routes, found, hedge=False)

    def _send_again(self, task: Task) -> None:
        """Sends a task that has nothing in flight to the holders of its experts, or lets it wait."""
        now, waiting = self._clock(), task.waiting
        if (
            waiting is not None
            and waiting.seen == self._fleet.events
            and now < min(waiting.again_at, waiting.until)
        ):
            return
        seen = self._fleet.events
        routes = self._routes()
        found = self._find(task, routes, lambda worker: self._usable(task, routes, worker, now))
        targets = set(found.values())
        if targets == {NOBODY}:
            self._wait(task, routes, seen, now)
        elif (task.root or task).attempts >= MAX_ATTEMPTS:
            task.settled = True
        elif len(targets) == 1:
            task.dispatch = replace(task.dispatch, worker=targets.pop())
            self._send(task, routes, counts=True)
        else:
            self._split(task, routes, found, hedge=False)

    def _split(self, task: Task, routes: Routes, found: dict[int, int], hedge: bool) -> None:
        plan = replan(task.dispatch, found)
        root = task.root or task
        children = [Task(dispatch, root.correlation_id) for dispatch in plan.dispatches]
        task.other = Split(plan, children, hedge)
        for child in children:
            child.root = root
            child.barred = dict(task.barred or {})
            child.error = task.error
            if task.message is not None:
                child.bar(task.connection, None)
            if hedge:
                child.spare = task
            if child.dispatch.worker != NOBODY:
                self._send(child, routes, counts=not hedge)

    def _send(self, task: Task, routes: Routes, counts: bool) -> None:
        # A task that only waited for its worker's first connection was never sent before.
        if counts and not isinstance(task.error, NotConnected):
            self._context.happened.add(RoutingEvents(failovers=1))
        if not isinstance(task.error, Busy):
            task.waiting = None  # new hope, new patience; but not each time that a worker is still busy
        if not self._exchange.send(task, routes):
            self._again = True

    # Nobody

    def _wait(self, task: Task, routes: Routes, seen: int, now: float) -> None:
        """Notes until when a task that nobody can answer may hope, or fails it with the reason."""
        policy, fleet = self._context.policy, self._fleet
        if task.waiting is None:
            patience = policy.wait_for_holder_s if policy.failover else self._context.connect_s
            task.waiting = Waiting(now + patience)
        waiting = task.waiting
        waiting.seen = seen
        bars = (task.barred or {}).values()
        times = [bar for bar in bars if isinstance(bar, float) and bar > now]
        waiting.again_at = min(times, default=math.inf)
        holders = self._holders(task, routes)
        hopeless = self._hopeless(task, routes, holders)
        spare = task.spare
        if hopeless is not None:
            task.error = hopeless
            task.settled = True
        elif spare is not None and spare.message is not None:
            task.settled = True
        elif now >= waiting.until or (not times and fleet.is_hopeless(routes)):
            fleet.give_up(routes)
            task.error = self._nobody(task, routes, holders)
            task.settled = True
        elif (
            not times
            and policy.failover
            and not self._counted_wait
            and not isinstance(task.error, NotConnected)
        ):
            self._counted_wait = True
            self._context.happened.add(RoutingEvents(waits_for_holder=1))

    def _hopeless(self, task: Task, routes: Routes, holders: list[int]) -> ColibriError | None:
        """Returns why waiting is useless, if it is: every holder refuses this router, or the router is closed."""
        failures = []
        if self._fleet.closed:
            name = routes.placement.workers[holders[0]]
            return WorkerLost(f"{name}: the router is closed", peer=name)
        for worker in holders:
            peer = routes.peers[worker]
            failure = None if peer is None or peer.connection is not None else peer.failure
            if failure is None:
                return None
            failures.append(failure)
        if not (self._context.policy.failover and any(failure.retryable for failure in failures)):
            return failures[0].with_traceback(None)
        return None

    def _nobody(self, task: Task, routes: Routes, holders: list[int]) -> ColibriError:
        if isinstance(task.error, Busy):
            return task.error
        names = [routes.placement.workers[worker] for worker in holders]
        experts = ", ".join(str(expert) for expert in task.dispatch.batch.group_expert.tolist()[:8])
        last = f"; last: {task.error.message}" if task.error is not None else ""
        text = f"{', '.join(names)}: nobody that holds expert {experts} of layer {self._exchange.layer} answers{last}"
        return WorkerLost(text, peer=names[0] if names else None, retry_after_s=_RETRY_AFTER_S)

    def _holders(self, task: Task, routes: Routes) -> list[int]:
        """Workers that hold some expert of the task, in order of preference."""
        holders = routes.placement.holders[self._exchange.layer]
        experts = task.dispatch.batch.group_expert.tolist()
        return list(dict.fromkeys(worker for expert in experts for worker in holders[expert]))

    # Helpers

    def _routes(self) -> Routes:
        """Returns the routes by the newest membership, which this exchange then uses until its end."""
        exchange = self._exchange
        exchange.membership = exchange.reading.newest()
        return self._fleet.routes(exchange.membership)

    def _find(self, task: Task, routes: Routes, usable: Callable[[int], int | None]) -> dict[int, int]:
        experts = task.dispatch.batch.group_expert.tolist()
        return stand_ins(routes.placement, self._exchange.layer, experts, usable)

    def _usable(self, task: Task, routes: Routes, worker: int, now: float) -> int | None:
        rank = routes.ranks[worker]
        return None if rank > EJECTED or self._barred(task, routes, worker, now) else rank

    def _barred(self, task: Task, routes: Routes, worker: int, now: float) -> bool:
        peer = routes.peers[worker]
        connection = None if peer is None else peer.connection
        if connection is None or connection.lost is not None:
            return True
        return task.is_barred(connection, routes.membership, now)

    def _pause(self, events: int) -> None:
        """Waits until something may have happened."""
        flights = [flight for task in self._exchange.tasks if not task.settled for flight in task.flights()]
        now = self._clock()
        if flights:
            self._polled += 1
            flight = flights[self._polled % len(flights)]
            if flight.message is not None:
                flight.connection.wait(flight.message, now + SLICE_S)
            return
        until = now + _LOOK_S
        if self._exchange.deadline.at is not None:
            until = min(until, self._exchange.deadline.at)
        until = min([until, *self._times_of_waiting(self._exchange.tasks)])
        if until > now:
            self._fleet.wait(events, until - now)

    def _times_of_waiting(self, tasks: list[Task]) -> list[float]:
        times = []
        for task in tasks:
            if task.waiting is not None:
                times += [task.waiting.again_at, task.waiting.until]
            if task.other is not None:
                times += self._times_of_waiting(task.other.tasks)
        return times

    def _expire(self) -> None:
        """Fails all tasks: the caller's time is over."""
        for task in self._exchange.tasks:
            if task.settled:
                continue
            flight = next(task.flights(), None)
            if flight is not None:
                peer = flight.peer.name
                text = f"{peer}: the deadline passed before its answer came"
            else:
                routes = self._routes()
                holders = self._holders(task, routes)
                peer = routes.placement.workers[holders[0]]
                cause = f" ({task.error.message})" if task.error is not None else ""
                text = f"{peer}: the deadline passed before anybody could answer{cause}"
            task.drop()
            task.other = None
            task.error = DeadlineExpired(text, peer=peer)
            task.settled = True
