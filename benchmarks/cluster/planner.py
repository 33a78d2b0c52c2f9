"""The placement planner, measured: how level, how many moves, how fast; beside round-robin and the published greedy
balancing (greedy.py), on the demo model's recorded routing (routing.py) and on Zipf loads, 16 workers on 16 hosts.

A move is a copy of an expert that a worker has to load. All planners have the same memory: as many slots in all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.cluster.greedy import GreedyPlan, greedy
from benchmarks.cluster.routing import KINDS, counts, recorded
from benchmarks.table import Line, Outcome
from colibri.cluster.experts.holders import Holders, as_placement, held
from colibri.cluster.placing.planner.outcome import balance_of, moves
from colibri.cluster.placing.planner.plan import Plan, plan
from colibri.cluster.placing.planner.problem import Loads, Problem, Worker
from colibri.cluster.placing.planner.seed import seed
from colibri.placement import Placement
from colibri.router_service.plan_types import OwnerTable

WORKERS = 16
Matrix = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Case:
    """steps: loads as they drift, each [layers, experts]; slots: of a worker in each layer."""

    name: str
    steps: tuple[Matrix, ...]
    slots: int


def cases() -> list[Case]:
    """Recorded: the texts' kinds in turn, mixed by thirds, so that one fades into the next. Zipf: 1 / rank, where a
    tenth of the experts change ranks from step to step."""
    choices = recorded()
    experts = int(max(kind.max() for kind in choices.values())) + 1
    pure = [counts(choices[kind], experts) for kind in KINDS]
    fading = []
    for at, now in enumerate(pure):
        after = pure[(at + 1) % len(pure)]
        fading += [now, (2 * now + after) / 3, (now + 2 * after) / 3]
    rng = np.random.default_rng(20261130)
    found = [Case(f"recorded, {experts} experts", tuple(fading), 2)]
    for alpha in (0.6, 1.0):
        for number in (8, 64, 256):
            rank = np.stack([rng.permutation(number) for _ in range(12)])
            steps = []
            for _ in range(8):
                steps.append(1000.0 / (1.0 + rank) ** alpha)
                for layer in rank:
                    chosen = rng.choice(number, max(2, number // 10), replace=False)
                    layer[chosen] = layer[rng.permutation(chosen)]
            slots = max(2, -(-number // WORKERS) + max(1, number // WORKERS // 8))
            found.append(Case(f"Zipf {alpha}, {number} experts", tuple(steps), slots))
    return found


def workers_of(case: Case) -> tuple[Worker, ...]:
    memory = case.slots * len(case.steps[0])
    return tuple(Worker(f"w{index}", memory=memory) for index in range(WORKERS))


def as_loads(matrix: Matrix) -> Loads:
    return tuple(tuple(row) for row in matrix.tolist())


def placed(planned: Plan | Holders, workers: Sequence[Worker], loads: Loads | None) -> Placement:
    holders = planned.holders if isinstance(planned, Plan) else planned
    return as_placement(holders, [worker.name for worker in workers], 1, loads)


def balance() -> Outcome:
    """Each step planned for; the largest over mean of every layer."""
    worst, rows = 0.0, []
    detail: dict[str, object] = {}
    for case in cases():
        workers = workers_of(case)
        layers, experts = case.steps[0].shape
        holders = seed(layers, experts, workers, 1)
        robin = placed(holders, workers, None)
        ours, theirs, round_robin = [], [], []
        for step in case.steps:
            loads = as_loads(step)
            planned = plan(Problem(workers, holders, 1, loads))
            holders = planned.holders
            ours.append(balance_of(placed(planned, workers, loads), loads))
            theirs.append(greedy(step, WORKERS, case.slots).ratio)
            round_robin.append(balance_of(robin, loads))
        mine = max(step.worst for step in ours)
        worst = max(worst, mine)
        other = np.concatenate(theirs)
        rows.append(
            f"{case.name}: {mine:.3f} (greedy {other.max():.3f}, round-robin {max(s.worst for s in round_robin):.2f})"
        )
        detail[case.name] = {
            "worst": mine,
            "mean": float(np.mean([step.mean for step in ours])),
            "greedy_worst": float(other.max()),
            "greedy_mean": float(other.mean()),
            "round_robin_worst": max(step.worst for step in round_robin),
            "round_robin_mean": float(np.mean([step.mean for step in round_robin])),
        }
    text, detail["realised"] = realised()
    return Outcome("; ".join(rows), worst <= 1.05, f"recorded rows not planned for: {text}", detail)


def one_host() -> Outcome:
    """Eight workers on one host, as `--spread any` may place them, from nothing and as loads drift: copies for load lie
    side by side there."""
    rows, met = [], True
    detail: dict[str, object] = {}
    workers = tuple(Worker(f"w{index}", "h0") for index in range(8))
    for case in cases():
        layers, experts = case.steps[0].shape
        start = holders = seed(layers, experts, workers, 1)
        found, robin = [], []
        for step in case.steps:
            loads = as_loads(step)
            planned = plan(Problem(workers, holders, 1, loads))
            holders = planned.holders
            found.append(balance_of(placed(planned, workers, loads), loads).mean)
            robin.append(balance_of(placed(start, workers, None), loads).mean)
        mean = float(np.mean(found))
        met &= mean <= 1.02
        rows.append(f"{case.name}: {mean:.3f} (round-robin {float(np.mean(robin)):.2f})")
        detail[case.name] = mean
    return Outcome("; ".join(rows), met, "", detail)


def realised() -> tuple[str, dict[str, float]]:
    """Planned for one half of each kind's recorded rows, measured on the other half, row by row as a router divides
    them, in batches of 256."""
    planned_for, actual, level = [], [], []
    choices = recorded()
    experts = int(max(kind.max() for kind in choices.values())) + 1
    workers = tuple(Worker(f"w{index}") for index in range(WORKERS))
    for kind in KINDS:
        first, second = choices[kind][:, 0::2], choices[kind][:, 1::2]
        loads = as_loads(counts(first, experts))
        planned = plan(Problem(workers, seed(len(first), experts, workers, 1), 1, loads))
        placement = placed(planned, workers, loads)
        planned_for.append(balance_of(placement, loads).mean)
        level.append(balance_of(placed(seed(len(first), experts, workers, 1), workers, None), loads).mean)
        ratios = []
        for layer in range(len(first)):
            table = OwnerTable.of_division(placement.division(layer), WORKERS)
            chosen = second[layer][:256]
            rows = np.arange(len(chosen))[:, np.newaxis] % table.turns
            taken = np.bincount(table.owner[rows, chosen].ravel(), minlength=WORKERS)
            ratios.append(taken.max() / taken.mean())
        actual.append(float(np.mean(ratios)))
    means = [float(np.mean(values)) for values in (actual, planned_for, level)]
    text = "mean of layers {:.2f} (planned {:.2f}, round-robin {:.2f})".format(*means)
    return text, dict(zip(KINDS, actual, strict=True))


def drift() -> Outcome:
    """Loads drift; each planner replans at each step, ours what is above 1.05. Moves are compared where our slowdown
    (the layers' largest loads over their means, summed) is at most 1.05, or the greedy planner's."""
    rows, met = [], True
    detail: dict[str, object] = {}
    for case in cases():
        workers = workers_of(case)
        layers, experts = case.steps[0].shape
        ours = theirs = 0
        holders: Holders | None = None
        before: GreedyPlan | None = None
        worst = other = 0.0
        for step in case.steps:
            loads = as_loads(step)
            start = seed(layers, experts, workers, 1) if holders is None else holders
            planned = plan(Problem(workers, start, 1, loads, goal=1.04, trigger=1.05))
            worst = max(worst, balance_of(placed(planned, workers, loads), loads).slowdown)
            made = greedy(step, WORKERS, case.slots)
            other = max(other, float((made.ratio * step.sum(axis=1)).sum() / step.sum()))
            if holders is not None and before is not None:
                ours += len(moves(holders, planned.holders)[0])
                theirs += len(made.held() - before.held())
            holders, before = planned.holders, made
        level = worst <= max(1.05, other)
        met &= level and 3 * ours <= theirs
        share = ours / theirs if theirs else 0.0
        rows.append(f"{case.name}: {ours} of {theirs} ({100 * share:.0f} %; {worst:.2f} against {other:.2f})")
        detail[case.name] = {
            "moves": ours,
            "greedy_moves": theirs,
            "slowdown": worst,
            "greedy_slowdown": other,
        }
    return Outcome("; ".join(rows), met, "the published greedy planner, from nothing at each step", detail)


def scale() -> Outcome:
    """1,000 workers on 125 hosts of 8, 256 experts x 60 layers, 2 copies of each; from nothing, then as loads drift."""
    workers = tuple(Worker(f"w{index}", f"h{index // 8}") for index in range(1000))
    rng = np.random.default_rng(7)
    rank = np.stack([rng.permutation(256) for _ in range(60)])
    loads = as_loads(1000.0 / (1.0 + rank) ** 0.7)
    drifted = as_loads(np.asarray(loads, np.float64) * np.exp(rng.normal(0, 0.1, (60, 256))))
    begun = time.perf_counter()
    start = seed(60, 256, workers, 2)
    first = plan(Problem(workers, start, 2, loads))
    middle = time.perf_counter()
    second = plan(Problem(workers, first.holders, 2, drifted))
    end = time.perf_counter()
    level = balance_of(placed(first, workers, loads), loads)
    after = balance_of(placed(second, workers, drifted), drifted)
    loaded = len(moves(first.holders, second.holders)[0])
    copies = sum(map(len, held(first.holders).values()))
    from_nothing, as_it_drifts = middle - begun, end - middle
    return Outcome(
        f"{from_nothing:.2f} s from nothing (slowest over mean {level.mean:.3f}), {as_it_drifts:.2f} s as loads drift "
        f"by 10 % ({after.mean:.3f}, {loaded} of {copies} copies loaded)",
        max(from_nothing, as_it_drifts) < 2.0,
        "",
        {"from_nothing_s": from_nothing, "drift_s": as_it_drifts, "worst": level.worst, "moves": loaded},
    )


def lines() -> list[Line]:
    return [
        Line(
            "planner-balance",
            "planner on recorded and skewed loads, 16 workers",
            "max/mean load at most 1.05 where replicas allow",
            balance,
        ),
        Line(
            "planner-one-host",
            "planner on recorded and skewed loads, 8 workers of one host",
            "mean of the layers' max/mean load at most 1.02",
            one_host,
        ),
        Line("planner-moves", "moves as loads drift", "at most a third of the greedy planner's", drift),
        Line("planner-scale", "1,000 workers, 256 experts x 60 layers", "under 2 s", scale),
    ]
