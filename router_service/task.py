"""One dispatch on its way to an answer, with all that is done about it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from colibri.errors import ColibriError
from colibri.placement import Membership
from colibri.router_service.connection import Connection, Message
from colibri.router_service.executor import Answers, PartResult
from colibri.router_service.latency import Window
from colibri.router_service.peer import Peer
from colibri.router_service.plan_types import Dispatch, LayerPlan
from colibri.router_service.replan import splice

#: How long a connection is not to be tried again: until a time, as long as a membership is in force, or for good.
Bar = float | Membership | None


class Split:
    """A task's units on their way elsewhere. hedge: because the first message is late, not because it failed."""

    __slots__ = ("hedge", "plan", "tasks")

    def __init__(self, plan: LayerPlan, tasks: list[Task], hedge: bool) -> None:
        self.plan = plan
        self.tasks = tasks
        self.hedge = hedge


class Task:
    """One dispatch, and what was sent for it. Settled once it has `result`, or `other` is settled, or `error` is
    final.

    message: in flight now, to `peer` over `connection`.
    hedge_at, deadline_at: when it counts as late, and when as lost.
    window: where its time is noted.
    error: why the last message failed.
    barred: connections that were tried.
    busy: refusals for lack of room.
    root: the task of the layer's plan that it stands in for; None: itself.
    attempts: messages sent for a root in all.
    spare: the task whose late message this one hedges.
    """

    # Most tasks need little of this: what is not set costs them nothing.
    connection: Connection
    peer: Peer
    window: Window
    attempts: int = 0
    message: Message | None = None
    hedge_at: float = math.inf
    deadline_at: float = math.inf
    result: PartResult | None = None
    error: ColibriError | None = None
    other: Split | None = None
    barred: dict[Connection, Bar] | None = None
    waiting: Waiting | None = None
    root: Task | None = None
    spare: Task | None = None
    busy: int = 0
    overdue: bool = False
    settled: bool = False

    def __init__(self, dispatch: Dispatch, correlation_id: int) -> None:
        self.dispatch = dispatch
        self.correlation_id = correlation_id

    def bar(self, connection: Connection, bar: Bar) -> None:
        if self.barred is None:
            self.barred = {}
        self.barred[connection] = bar

    def is_barred(self, connection: Connection, membership: Membership, now: float) -> bool:
        if self.barred is None or connection not in self.barred:
            return False
        bar = self.barred[connection]
        if isinstance(bar, Membership):
            return bar is membership
        return bar is None or now < bar

    @property
    def failed(self) -> bool:
        """Whether some of its units have no answer although it is settled."""
        if self.result is not None:
            return False
        return self.other is None or any(child.failed for child in self.other.tasks)

    def flights(self) -> Iterator[Task]:
        """Yields this task and those below it that have a message in flight."""
        if self.message is not None:
            yield self
        if self.other is not None:
            for child in self.other.tasks:
                yield from child.flights()

    def drop(self) -> None:
        """Abandons what is in flight for it: nobody needs it any more."""
        for task in list(self.flights()):
            if task.message is not None:
                task.connection.abandon(task.message)
                task.message = None


class Waiting:
    """A task that nobody can answer now.

    until: when it gives up.
    seen: the fleet's number of events when it last looked.
    again_at: when a busy worker may be asked again.
    """

    __slots__ = ("again_at", "seen", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.seen = -1
        self.again_at = math.inf


def gather(plan: LayerPlan, tasks: list[Task]) -> Answers:
    """Returns the answers of a plan whose tasks are all settled."""
    replaced = {}
    results: list[PartResult | ColibriError] = []
    for number, task in enumerate(tasks):
        if task.result is not None:
            results.append(task.result)
        elif task.other is not None:
            found, changed = gather(task.other.plan, task.other.tasks)
            replaced[number] = changed or task.other.plan
            results += found
        elif task.error is not None:
            results.append(task.error)
        else:
            raise RuntimeError("a task without outcome")
    return Answers(results, splice(plan, replaced) if replaced else None)
