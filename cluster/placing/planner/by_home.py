"""Split a problem whose experts have numerics homes into one problem per id: these share no worker and no expert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from colibri.cluster.experts.holders import Holders
from colibri.cluster.placing.planner.problem import Loads, Problem
from colibri.numerics_homes import NumericsHomes

_Value = TypeVar("_Value")
#: As colibri.cluster.placing.planner.plan.plan: (holders, loads that they were planned for or None).
PlanOne = Callable[[Problem], tuple[Holders, Loads | None]]


def plan_by_home(problem: Problem, homes: NumericsHomes, plan_one: PlanOne) -> tuple[Holders, Loads | None]:
    """Plans each id's experts. If no worker of the problem has an id, its experts stay as they are: nobody else may
    hold them.
    """
    holders = [list(experts) for experts in problem.holders]
    loads = [[1.0] * problem.experts for _ in range(problem.layers)]
    known = False
    for home in dict.fromkeys(homes.experts):
        numbers = [expert for expert, own in enumerate(homes.experts) if own == home]
        workers = tuple(worker for worker in problem.workers if homes.of(worker.name) == home)
        if not workers:
            continue
        at = {expert: index for index, expert in enumerate(numbers)}
        part = replace(
            problem,
            workers=workers,
            holders=_columns(problem.holders, numbers),
            replicas=max(1, min(problem.replicas, len({worker.domain for worker in workers}))),
            loads=None if problem.loads is None else _columns(problem.loads, numbers),
            pinned=frozenset((layer, at[expert]) for layer, expert in problem.pinned if expert in at),
            homes=None,
        )
        found, planned_for = plan_one(part)
        known = known or planned_for is not None
        for layer in range(problem.layers):
            for index, expert in enumerate(numbers):
                holders[layer][expert] = found[layer][index]
                if planned_for is not None:
                    loads[layer][expert] = planned_for[layer][index]
    return (
        tuple(tuple(experts) for experts in holders),
        tuple(tuple(row) for row in loads) if known else None,
    )


def _columns(rows: Sequence[Sequence[_Value]], numbers: Sequence[int]) -> tuple[tuple[_Value, ...], ...]:
    return tuple(tuple(row[number] for number in numbers) for row in rows)
