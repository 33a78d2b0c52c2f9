"""Describe the whole state of a deployment in one message: what its launcher, workers, router and engine say."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.cluster.placing.manager import ManagerView
from colibri.cluster.placing.planner.outcome import Balance, Move
from colibri.cluster.placing.proposal import Proposal
from colibri.cluster.placing.rebalancer import RebalanceView
from colibri.cluster.placing.worker_facts import host_of
from colibri.cluster.workers.expert_calls import ask_status
from colibri.cluster.workers.launch import WorkerState, WorkerStatus
from colibri.coordinator.stats import EngineStats
from colibri.deadline import Clock
from colibri.errors import ColibriError
from colibri.placement import Membership, WorkerEndpoint
from colibri.router_service.stats import RoutingStats, WorkerHealth
from colibri.v1 import expert_pb2, operator_pb2
from colibri.version import __version__

#: A worker that hangs must not hold up the status of the others for longer.
_ANSWER_S = 1.0


@dataclass(frozen=True, slots=True)
class StatusSources:
    """Functions that return the parts of a status, each at once.

    engine: None for a router alone.
    workers, view, routing, health: None without workers.
    loads: [layers, experts], rows that chose each expert; None if they are not counted.
    log_lines_dropped: lines that this process's log lost.
    """

    model: str
    expert_numerics_id: str
    membership: Callable[[], Membership]
    engine: Callable[[], EngineStats] | None = None
    workers: Callable[[], Sequence[WorkerStatus]] | None = None
    view: Callable[[], ManagerView] | None = None
    routing: Callable[[], RoutingStats] | None = None
    health: Callable[[], Mapping[str, WorkerHealth]] | None = None
    loads: Callable[[], NDArray[np.int64]] | None = None
    log_lines_dropped: Callable[[], int] = lambda: 0


def cluster_status(
    sources: StatusSources, experts: bool, loads: bool, clock: Clock
) -> operator_pb2.ClusterStatusReply:
    """Returns the status.

    experts: include the ids that each worker holds.
    loads: include the rows of each expert.
    """
    membership = sources.membership()
    view = sources.view() if sources.view is not None else None
    launched = sources.workers() if sources.workers is not None else ()
    health = sources.health() if sources.health is not None else {}
    holders = {len(names) for experts in membership.placement.holders for names in experts}
    answers = _ask(list(membership.endpoints.values()), experts)
    workers = [
        _worker(status, view, health.get(status.name), answers.get(status.name), clock())
        for status in launched
    ]
    if view is not None:
        running = {status.name for status in launched}
        workers += [
            operator_pb2.WorkerInfo(
                name=name,
                state="drained",
                health="unknown",
                reason=f"an operator drained it: `colibri drain {name} --undo` brings it back",
                host=_host(view, name),
            )
            for name in view.desired.drained
            if name not in running
        ]
    return operator_pb2.ClusterStatusReply(
        epoch=membership.placement.epoch,
        replicas=1 if view is None else view.desired.replicas,
        workers=workers,
        routing=_routing(sources.routing() if sources.routing is not None else RoutingStats()),
        engine=None if sources.engine is None else _engine(sources.engine()),
        change="" if view is None else view.change,
        last_change_error="" if view is None else view.last_error,
        model=sources.model,
        expert_numerics_id=sources.expert_numerics_id,
        build_version=__version__,
        rebalance=None if view is None or view.rebalance is None else _rebalance(view.rebalance),
        holders_least=min(holders, default=0),
        holders_most=max(holders, default=0),
        kept_in="" if view is None else view.kept_in,
        kept_trouble="" if view is None else view.kept_trouble,
        layers=[operator_pb2.LayerLoads(rows=rows) for rows in _rows(sources)] if loads else (),
        log_lines_dropped=sources.log_lines_dropped(),
    )


def _rows(sources: StatusSources) -> list[list[int]]:
    return [] if sources.loads is None else sources.loads().tolist()


def placement_plan(proposal: Proposal) -> operator_pb2.PlacementPlan:
    return operator_pb2.PlacementPlan(
        loads=map(_copy, proposal.loads),
        drops=map(_copy, proposal.drops),
        bytes=proposal.nbytes,
        before=_balance(proposal.before),
        after=_balance(proposal.after),
    )


def _copy(move: Move) -> operator_pb2.PlannedCopy:
    return operator_pb2.PlannedCopy(worker=move.worker, layer=move.expert[0], expert=move.expert[1])


def _balance(balance: Balance) -> operator_pb2.Balance:
    return operator_pb2.Balance(worst=balance.worst, mean=balance.mean, slowdown=balance.slowdown)


def _rebalance(view: RebalanceView) -> operator_pb2.RebalanceInfo:
    return operator_pb2.RebalanceInfo(
        mode=view.mode, active=view.active, changes=view.changes, last=view.last
    )


def _worker(
    status: WorkerStatus,
    view: ManagerView | None,
    health: WorkerHealth | None,
    answer: expert_pb2.StatusReply | None,
    now: float,
) -> operator_pb2.WorkerInfo:
    info = operator_pb2.WorkerInfo(
        name=status.name,
        incarnation=status.incarnation,
        pid=status.pid,
        target=status.target,
        state=_state(status, view),
        health="unknown" if health is None else health.state.value,
        experts=status.experts,
        weight_bytes=status.weight_bytes,
        cpus=status.cpus_allowed,
        deaths=status.deaths,
        last_error=status.last_error,
        bytes_fetched=status.bytes_fetched,
        load_done=status.load_done,
        load_total=status.load_total,
        uptime_s=max(0.0, now - status.served_since) if status.served_since else 0.0,
        numa_node=status.numa_node,
        weight_pages=_pages(status.weight_pages),
        oversubscribed=status.oversubscribed,
        crossing=status.crossing,
        compute_threads=status.pin.threads,
        reason=_reason(status, view),
        mends=status.mends,
        last_mend=status.last_mend,
        host=host_of(status.target) if status.target else "",
    )
    if health is not None:
        info.link = health.link
        info.latency_p50_us = health.latency_p50_s * 1e6
        info.latency_p99_us = health.latency_p99_s * 1e6
        info.health_reason = health.reason
    if answer is not None and answer.incarnation == status.incarnation:
        info.experts = answer.experts_loaded
        info.weight_bytes = answer.weight_bytes
        info.bytes_fetched = answer.bytes_fetched
        info.queued = answer.queued
        info.oldest_queued_us = answer.oldest_queued_us
        info.requests_done = answer.requests_done
        info.rows_done = answer.rows_done
        info.held.extend(f"{item.layer}:{item.expert}" for item in answer.held)
        del info.weight_pages[:]
        info.weight_pages.extend(_pages(sorted(answer.weight_pages_by_node.items())))
        info.compute_threads = answer.compute_threads
    return info


def _pages(found: Iterable[tuple[int, int]]) -> list[operator_pb2.NodePages]:
    return [operator_pb2.NodePages(node=node, pages=pages) for node, pages in found]


def _state(status: WorkerStatus, view: ManagerView | None) -> str:
    if view is not None and status.name in view.draining and status.state is not WorkerState.STOPPED:
        return "draining"
    return "waiting" if status.state is WorkerState.WAITING else status.state.value


def _reason(status: WorkerStatus, view: ManagerView | None) -> str:
    if _state(status, view) == "draining":
        return "an operator drains it: its experts move away"
    return status.reason


def _host(view: ManagerView, name: str) -> str:
    worker = view.desired.facts.get(name)
    return "" if worker is None else worker.host


def _routing(stats: RoutingStats) -> operator_pb2.RoutingInfo:
    return operator_pb2.RoutingInfo(
        exchanges=stats.exchanges,
        messages=stats.messages,
        failovers=stats.failovers,
        timeouts=stats.timeouts,
        hedges=stats.hedges,
        hedges_won=stats.hedges_won,
        late_replies=stats.late_replies,
        bad_replies=stats.bad_replies,
        refusals=stats.refusals,
        ejections=stats.ejections,
        waits_for_holder=stats.waits_for_holder,
        balance=stats.balance,
    )


def _engine(stats: EngineStats) -> operator_pb2.EngineInfo:
    return operator_pb2.EngineInfo(
        running=stats.running,
        waiting=stats.waiting,
        finished=stats.finished,
        failed=stats.failed,
        aborted=stats.aborted,
        tokens=stats.sampled,
        kv_pages=stats.kv_pages,
        kv_pages_used=stats.kv_pages_used,
    )


def _ask(endpoints: Sequence[WorkerEndpoint], experts: bool) -> dict[str, expert_pb2.StatusReply]:
    """Asks all workers at the same time. Returns the answers of those that answer."""
    answers: dict[str, expert_pb2.StatusReply] = {}

    def ask(endpoint: WorkerEndpoint) -> None:
        try:
            answers[endpoint.name] = ask_status(
                endpoint.target,
                f"worker {endpoint.name}",
                _ANSWER_S,
                security=endpoint.security,
                experts=experts,
            )
        except ColibriError:
            return  # what its launcher knows is told instead

    threads = [threading.Thread(target=ask, args=(endpoint,), daemon=True) for endpoint in endpoints]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * _ANSWER_S)
    return dict(answers)
