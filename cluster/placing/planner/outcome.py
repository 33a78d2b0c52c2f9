"""Describe what a placement comes to: how level it is, how many copies it has, what it takes to get there."""

from __future__ import annotations

from dataclasses import dataclass

from colibri.cluster.experts.holders import ExpertId, Holders, held
from colibri.cluster.placing.planner.problem import Loads
from colibri.placement import Placement
from colibri.row_division import worker_loads


@dataclass(frozen=True, slots=True)
class Balance:
    """How level a placement is under loads. 1 is level; all values are 1 without load.

    worst, mean: over the layers with load, the largest load over the mean, both by speed.
    slowdown: sum of the layers' largest over the sum of their means: the cost of waiting for each layer's slowest
        worker.
    """

    worst: float
    mean: float
    slowdown: float


def balance_of(placement: Placement, loads: Loads) -> Balance:
    """Measures a placement by the division that routers use."""
    speeds = placement.speeds or (1.0,) * len(placement.workers)
    ratios, largest, means = [], 0.0, 0.0
    for layer, layer_loads in enumerate(loads):
        mean = sum(layer_loads) / sum(speeds)
        if mean <= 0:
            continue
        taken = worker_loads(placement.division(layer), layer_loads, len(speeds))
        most = max(load / speed for load, speed in zip(taken, speeds, strict=True))
        ratios.append(most / mean)
        largest += most
        means += mean
    if not ratios:
        return Balance(1.0, 1.0, 1.0)
    return Balance(max(ratios), sum(ratios) / len(ratios), largest / means)


@dataclass(frozen=True, slots=True)
class Move:
    """An expert that a worker gets or gives up."""

    worker: str
    expert: ExpertId


def moves(old: Holders, new: Holders) -> tuple[tuple[Move, ...], tuple[Move, ...]]:
    """Returns (loads, drops), each by worker, ascending."""
    before, after = held(old), held(new)
    names = [*before, *(name for name in after if name not in before)]
    nothing: set[ExpertId] = set()
    gained, lost = [], []
    for name in names:
        had, has = before.get(name, nothing), after.get(name, nothing)
        gained += [Move(name, expert) for expert in sorted(has - had)]
        lost += [Move(name, expert) for expert in sorted(had - has)]
    return tuple(gained), tuple(lost)
