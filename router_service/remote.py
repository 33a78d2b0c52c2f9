"""RemoteExecutor: sends a layer's dispatches over the workers' streams, and keeps a failing worker from failing a
request.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping

from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError, InvalidInput, WorkerLost
from colibri.kernels.api import Array
from colibri.placement import Directory, Membership, Reading
from colibri.router_service.connections import connector
from colibri.router_service.exchange import Context, Exchange
from colibri.router_service.executor import Answers
from colibri.router_service.fleet import Fleet
from colibri.router_service.handshake import RouterIdentity
from colibri.router_service.health_log import HealthLog
from colibri.router_service.hedge import HedgeBudget
from colibri.router_service.keeper import Keeper
from colibri.router_service.plan_types import LayerPlan, OwnerTable
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.recovery import Recovery
from colibri.router_service.stats import (
    ExchangeTimes,
    Recorder,
    RoutingEvents,
    RoutingStats,
    WorkerHealth,
)
from colibri.router_service.task import gather
from colibri.transport.link import LinkKind
from colibri.wire.limits import FrameLimits

_log = logging.getLogger(__name__)

#: Longest wait for a worker's first connection and its handshake, seconds.
CONNECT_S = 5.0
#: How often links that nobody uses are looked at, and workers compared with each other, seconds.
_WATCH_S, _COMPARE_S = 0.1, 0.2


class RemoteExecutor:
    """An ExpertExecutor (colibri.router_service.executor) over gRPC workers.

    Each message carries (correlation id, attempt), and each attempt counts one answer. A thread follows the
    directory: it ends connections to workers that are gone, so that waiting threads learn of it at once, and
    connects new workers before they are needed. The handshake refuses a worker with the wrong expert_numerics_id.
    All holders of an expert have the same id (colibri.numerics_homes), so any of them may stand in for another.
    """

    def __init__(
        self,
        identity: RouterIdentity,
        limits: FrameLimits,
        directory: Directory,
        *,
        link: LinkKind = LinkKind.AUTO,
        connect_s: float = CONNECT_S,
        policy: FailoverPolicy | None = None,
        log: Callable[[str], None] = lambda line: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.policy = policy = policy or FailoverPolicy()
        self._limits = limits
        self._directory = directory
        self._connect_s = connect_s
        self._clock = clock
        self._times = Recorder(ExchangeTimes())
        self._happened = Recorder(RoutingEvents())
        ids = itertools.count(1)
        connect = connector(identity, limits, lambda: self._times.add(ExchangeTimes(late_replies=1)), link)
        keeper = Keeper(connect, limits, ids, connect_s, clock)
        self._fleet = Fleet(directory, policy, self._happened, keeper.start, clock)
        budget = HedgeBudget(policy.hedge_budget, policy.hedge_burst)
        self._context = Context(
            limits, self._fleet, policy, budget, self._times, self._happened, ids, connect_s, clock
        )
        self._health_log = HealthLog(log)
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="colibri-directory", daemon=True)
        self._watcher.start()

    @property
    def max_rows(self) -> int:
        return self._limits.max_rows

    def connect(self) -> Mapping[str, ColibriError]:
        """Waits until every live worker is connected, or an attempt to connect to it has failed.

        Returns the errors by worker; empty if all shook hands.
        """
        self._fleet.follow()
        until = self._clock() + self._connect_s + 1.0
        failures: dict[str, ColibriError] = {}
        for name, peer in self._fleet.present().items():
            events = self._fleet.events
            while not peer.tries and not peer.over.is_set() and self._clock() < until:
                events = self._fleet.wait(events, until - self._clock())
            if peer.connection is None:
                failures[name] = peer.failure or WorkerLost(f"{name}: not connected yet", peer=name)
        return failures

    def table(self, layer: int, membership: Membership) -> OwnerTable:
        """See ExpertExecutor.table; colibri.router_service.routing decides who answers."""
        return self._fleet.routes(membership).table(layer)

    def run(
        self,
        layer: int,
        x: Array,
        plan: LayerPlan,
        reading: Reading,
        deadline: Deadline,
        priority: int,
    ) -> Answers:
        """See ExpertExecutor.run."""
        start = time.perf_counter()
        row_bytes = x.itemsize * x.shape[1]
        if row_bytes != self._limits.row_bytes or not x.flags.c_contiguous:
            expected = f"C-contiguous rows of {self._limits.row_bytes} bytes"
            raise InvalidInput("x", expected, f"{row_bytes} bytes, strides {x.strides}")
        exchange = Exchange(self._context, layer, x, reading, deadline, priority)
        times, tasks = exchange.times, exchange.tasks
        routes = self._fleet.routes(reading.membership)
        try:
            quiet = True
            for dispatch in plan.dispatches:
                quiet &= exchange.begin(dispatch, routes)
            written = time.perf_counter()
            if quiet and exchange.wait():
                answers = Answers([task.result for task in tasks if task.result is not None])
            else:
                answers = self._recover(exchange, plan)
        except BaseException:
            for task in tasks:
                task.drop()
            raise
        times.write_s = written - start
        times.wait_s = time.perf_counter() - written
        self._times.add(times)
        return answers

    def times(self) -> ExchangeTimes:
        return self._times.snapshot()

    def routing(self) -> RoutingStats:
        """Returns what the router did about its workers since the start."""
        times, happened = self._times.snapshot(), self._happened.snapshot()
        rows = [peer.rows_sent for peer in self._fleet.present().values()]
        return RoutingStats(
            exchanges=times.exchanges,
            messages=times.messages,
            failovers=happened.failovers,
            timeouts=happened.timeouts,
            hedges=happened.hedges,
            hedges_won=happened.hedges_won,
            late_replies=times.late_replies,
            bad_replies=happened.bad_replies,
            refusals=happened.refusals,
            ejections=happened.ejections,
            waits_for_holder=happened.waits_for_holder,
            balance=max(rows) * len(rows) / sum(rows) if any(rows) else 0.0,
        )

    def workers(self) -> Mapping[str, WorkerHealth]:
        """Describes each worker that is in the placement or alive, as the router sees it."""
        return self._fleet.report()

    def close(self) -> None:
        self._closing.set()
        self._fleet.close(self._connect_s + 1.0)
        if threading.current_thread() is not self._watcher:
            self._watcher.join(1.0)

    def _recover(self, exchange: Exchange, plan: LayerPlan) -> Answers:
        Recovery(exchange).run()
        answers = gather(plan, exchange.tasks)
        exchange.times.failed_messages = sum(isinstance(result, ColibriError) for result in answers.results)
        return answers

    def _watch(self) -> None:
        compared_at = self._clock()
        while not self._closing.is_set():
            seen = self._directory.current()
            try:
                self._fleet.follow()
                self._fleet.check_links()
                if self.policy.failover and self._clock() - compared_at >= _COMPARE_S:
                    compared_at = self._clock()
                    self._fleet.compare()
                self._health_log.look(self._fleet.conditions())
            except Exception:
                # Without this thread a lost worker would be noticed by the requests that it holds up.
                _log.exception("unexpected error while watching the workers")
            self._directory.wait_change(seen, _WATCH_S)
