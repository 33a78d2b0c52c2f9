"""Send all messages of one layer, then wait for their answers. recovery.py handles late and failed ones.

This is the hot path: nothing here connects or plans, or waits beyond the first timer; measuring costs a few
additions.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from colibri.deadline import Clock, Deadline
from colibri.errors import Busy, ColibriError, DeadlineExpired, FrameError, InvalidInput, WorkerLost
from colibri.kernels.api import Array
from colibri.placement import Reading
from colibri.router_service.connection import SendTimeout
from colibri.router_service.executor import rows_of
from colibri.router_service.fleet import Fleet
from colibri.router_service.hedge import HedgeBudget
from colibri.router_service.plan_types import Dispatch
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.replies import outcome
from colibri.router_service.routing import Routes
from colibri.router_service.stats import ExchangeTimes, Recorder, RoutingEvents
from colibri.router_service.task import Task
from colibri.v1 import expert_pb2
from colibri.wire.frame import Frame
from colibri.wire.header import Header
from colibri.wire.limits import FrameLimits

#: An answer that came so long after it was asked for was waited for, so that its time is known, seconds.
_WAITED_S = 20e-6
#: A worker that refused for want of room, without advice, is asked again after so long, then twice as long and so on;
#: at most, seconds.
_AGAIN_S, _LONGEST_AGAIN_S = 0.005, 0.25


@dataclass(frozen=True, slots=True)
class Context:
    """What all exchanges of an executor share. connect_s: longest wait for a worker's first connection, seconds."""

    limits: FrameLimits
    fleet: Fleet
    policy: FailoverPolicy
    budget: HedgeBudget
    times: Recorder[ExchangeTimes]
    happened: Recorder[RoutingEvents]
    ids: itertools.count[int]
    connect_s: float
    clock: Clock


class NotConnected(WorkerLost):
    """There is no connection to the worker yet, and none was lost or refused."""


class Exchange:
    """The messages of one call of ExpertExecutor.run. Belongs to one thread."""

    __slots__ = (
        "_mode",
        "context",
        "deadline",
        "layer",
        "membership",
        "priority",
        "reading",
        "tasks",
        "timer",
        "times",
        "x",
    )

    def __init__(
        self,
        context: Context,
        layer: int,
        x: Array,
        reading: Reading,
        deadline: Deadline,
        priority: int,
    ) -> None:
        self.context = context
        self.layer = layer
        self.x = x
        self.reading = reading
        #: The snapshot in use now.
        self.membership = reading.membership
        self.deadline = deadline
        self.priority = priority
        self.tasks: list[Task] = []
        self.times = ExchangeTimes(1)
        #: When the first of the messages is late, or the caller's deadline, on the clock.
        self.timer = math.inf if deadline.at is None else deadline.at

    def begin(self, dispatch: Dispatch, routes: Routes) -> bool:
        """Sends a dispatch to its worker. Returns whether it was sent."""
        task = Task(dispatch, next(self.context.ids))
        self.tasks.append(task)
        return self.send(task, routes)

    def wait(self) -> bool:
        """Waits for one answer after another. Returns False as soon as one is late or failed, and leaves the others
        untouched.
        """
        tasks = self.tasks
        clock, timer = self.context.clock, self.timer
        count = len(tasks)
        # Whoever is waited for first is measured best: that is another one in each layer.
        for number in range(self.layer, self.layer + count):
            task = tasks[number % count]
            if task.message is None:
                return False
            asked = clock()
            if not task.connection.wait(task.message, timer) or not self.take(task, asked):
                return False
        return True

    def send(self, task: Task, routes: Routes) -> bool:
        """Sends a task to the worker of its dispatch, by the worker numbers of `routes`. Returns False if it failed
        (`task.error`).
        """
        context, dispatch = self.context, task.dispatch
        peer = routes.peers[dispatch.worker]
        connection = None if peer is None else peer.connection
        if peer is None or connection is None:
            self._failed(task, _unconnected(routes, dispatch.worker))
            return False
        entries = len(dispatch.batch.entry_row)
        task.peer = peer
        task.connection = connection
        task.window = window = peer.latency.windows[entries.bit_length()]
        try:
            message = connection.send(
                self._header(task, connection.endpoint.incarnation, routes, connection.max_rows),
                rows_of(self.x, dispatch).data.cast("B"),
                self.deadline,
                window.deadline_after,
            )
        except ColibriError as error:
            if isinstance(error, SendTimeout):
                context.happened.add(RoutingEvents(timeouts=1))
                context.fleet.eject(peer)
            self._failed(task, error)
            return False
        task.message = message
        if task.overdue:
            task.overdue = False
        times = self.times
        times.messages += 1
        times.bytes_sent += len(dispatch.rows) * context.limits.row_bytes
        sent_at = message.sent_at
        message.due_at = task.deadline_at = timer = sent_at + window.deadline_after
        if context.policy.hedge and routes.replaceable[dispatch.worker]:
            task.hedge_at = hedge_at = sent_at + window.hedge_after
            if hedge_at < timer:
                timer = hedge_at
        if timer < self.timer:
            self.timer = timer
        return True

    def take(self, task: Task, asked: float) -> bool:
        """Takes the outcome of a message that is done. Returns False if it failed (`task.error`).

        asked: when this thread began to wait for it, seconds of the clock.
        """
        message = task.message
        if message is None:
            return False
        task.message = None
        reply = message.reply
        if reply is None:
            self._failed(task, message.error or FrameError(f"{task.peer.name}: a message without outcome"))
            return False
        result = outcome(reply, task.peer.name)
        if isinstance(result, ColibriError):
            self._refused(task, result, reply)
            return False
        task.result = result
        task.settled = True
        task.window.add(message.done_at - message.sent_at, message.done_at - asked > _WAITED_S)
        header, times, peer = reply.header, self.times, task.peer
        peer.queue.add(header.queue_us)
        if peer.health.lost_hedges:
            peer.health.lost_hedges = 0
        times.bytes_received += len(reply.tensor)
        times.worker_queue_s += header.queue_us * 1e-6
        times.worker_compute_s += header.compute_us * 1e-6
        return True

    def expired(self) -> bool:
        return self.deadline.at is not None and self.context.clock() >= self.deadline.at

    def _header(self, task: Task, incarnation: int, routes: Routes, max_rows: int) -> Header:
        dispatch, limits, clock = task.dispatch, self.context.limits, self.context.clock
        name = task.peer.name
        if self.deadline.at is not None and self.deadline.expired(clock):
            text = f"{name}: the deadline passed before layer {self.layer} was sent"
            raise DeadlineExpired(text, peer=name)
        rows = len(dispatch.rows)
        if rows > max_rows:
            raise InvalidInput("rows", f"at most {max_rows} (what {name} takes in one message)", rows)
        origin = task.root or task
        attempt = origin.attempts
        origin.attempts = attempt + 1
        batch = dispatch.batch
        return Header(
            kind=expert_pb2.FRAME_KIND_FORWARD,
            correlation_id=origin.correlation_id,
            attempt=attempt,
            epoch=routes.placement.epoch,
            incarnation=incarnation,
            remaining_us=self.deadline.remaining_us(clock),
            priority=self.priority,
            layer=self.layer,
            compute_mode=limits.mode_number,
            wire_dtype=limits.dtype_number,
            rows=rows,
            hidden=limits.hidden,
            units=len(dispatch.unit_row),
            group_expert=batch.group_expert,
            group_count=batch.group_count,
            entry_row=batch.entry_row,
            entry_slot=batch.entry_slot,
            entry_unit=batch.entry_unit,
            entry_weight=batch.entry_weight,
            unit_slots=batch.unit_slots,
        )

    def _refused(self, task: Task, error: ColibriError, reply: Frame) -> None:
        """Notes that the worker refused, so that it is not asked again in vain."""
        context = self.context
        context.happened.add(RoutingEvents(refusals=1))
        if reply.header.kind == expert_pb2.FRAME_KIND_EXPIRED:
            # Its own clock said so. Whether the time is over is for this side to say.
            error.retryable = not self.expired()
        if isinstance(error, Busy):
            context.fleet.busy(task.peer)
        self._failed(task, error)

    def _failed(self, task: Task, error: ColibriError) -> None:
        """Notes that a message could not be sent, or failed. Final unless its units may be sent again."""
        policy = self.context.policy
        task.error = error
        task.hedge_at = task.deadline_at = math.inf
        task.settled = not (policy.failover and error.retryable) and not isinstance(error, NotConnected)
        if task.settled or isinstance(error, NotConnected) or not hasattr(task, "connection"):
            return
        connection = task.connection
        if isinstance(error, Busy | SendTimeout):
            after = (error.retry_after_s or _AGAIN_S) * 2.0**task.busy
            task.busy += 1
            task.bar(connection, self.context.clock() + min(after, _LONGEST_AGAIN_S))
        elif isinstance(error, WorkerLost | FrameError):
            task.bar(connection, None)
        else:
            task.bar(connection, self.membership)


def _unconnected(routes: Routes, worker: int) -> ColibriError:
    """Returns why nothing can be sent to a worker."""
    name, peer = routes.placement.workers[worker], routes.peers[worker]
    if peer is None:
        endpoint = routes.membership.endpoints.get(name)
        if endpoint is None:
            text = f"{name}: not alive in the placement of epoch {routes.placement.epoch}"
        else:
            text = f"{name}: incarnation {endpoint.incarnation} is not alive any more"
        return WorkerLost(text, peer=name)
    if peer.failure is None:
        return NotConnected(f"{name}: not connected yet", peer=name)
    return peer.failure.with_traceback(None)
