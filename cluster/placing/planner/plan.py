"""The planner: a problem in, a placement out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from colibri.cluster.experts.holders import Holders
from colibri.cluster.placing.planner.balance import balance
from colibri.cluster.placing.planner.by_home import plan_by_home
from colibri.cluster.placing.planner.cover import cover
from colibri.cluster.placing.planner.even import even_out
from colibri.cluster.placing.planner.layout import Layout
from colibri.cluster.placing.planner.problem import Loads, Problem, Worker
from colibri.cluster.placing.planner.seed import seed


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. holders: of every expert; loads: that they were planned for; None: planned by number."""

    holders: Holders
    loads: Loads | None


def plan(problem: Problem) -> Plan:
    """Returns a placement with every expert on at least `replicas` hosts, no worker beyond its memory, and as level as
    `goal` says or as copies allow.

    The same problem always has the same plan. If loads are unknown and workers differ, every expert counts alike.
    Raises OverBudget if pinned experts leave no room.
    """
    if problem.homes is not None:
        return Plan(*plan_by_home(problem, problem.homes, _plan_one))
    if problem.loads is None and len({worker.speed for worker in problem.workers}) > 1:
        problem = replace(problem, loads=tuple((1.0,) * problem.experts for _ in range(problem.layers)))
    loads = problem.loads
    layout = Layout(problem)
    cover(layout)
    if loads is None:
        even_out(layout, copies=problem.even)
    elif problem.even:
        levels = balance(layout, loads)
        for experts, level in zip(layout.holders, levels, strict=True):
            for holders, pieces in zip(experts, level.pieces, strict=True):
                if len(holders) > 1:
                    holders.sort(key=lambda worker: -pieces.get(worker, 0.0))
    return Plan(layout.result(), loads)


def _plan_one(problem: Problem) -> tuple[Holders, Loads | None]:
    planned = plan(problem)
    return planned.holders, planned.loads


def first_plan(
    layers: int,
    experts: int,
    workers: Sequence[Worker],
    replicas: int = 1,
    loads: Loads | None = None,
    expert_bytes: int = 1,
) -> Plan:
    """Plans for workers that hold nothing yet. Raises as Problem and plan."""
    start = seed(layers, experts, workers, replicas)
    return plan(Problem(tuple(workers), start, replicas, loads, expert_bytes))
