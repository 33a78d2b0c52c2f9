"""Decide when each event of a plan happens: a pure function of the plan and its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from colibri.bench.chaos.plan import EventSpec, Plan

#: An interval is drawn from this share of `every` up to its mirror image above 1.
_SHORTEST = 0.75
MAX_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class Scheduled:
    """An event with its time.

    number: from 0, in order of time.
    at_s: from the start of the run, seconds.
    draw: seeds every choice that is made only when the event happens (which worker, which expert).
    """

    number: int
    at_s: float
    phase: str
    spec: EventSpec
    draw: int


def schedule(plan: Plan) -> tuple[Scheduled, ...]:
    """Returns all events in order of time. The quiet phase comes first, then the phases one after another.

    Each line of the plan has a generator of its own, so a new line does not move the events of others.
    """
    found: list[tuple[float, int, str, EventSpec, int]] = []
    start = plan.quiet_s
    for number, phase in enumerate(plan.phases):
        for line, spec in enumerate(phase.events):
            draw = random.Random(f"{plan.seed}/{number}/{line}")
            for at in _times(spec, phase.duration_s, draw):
                found.append((start + at, len(found), phase.name, spec, draw.getrandbits(63)))
        start += phase.duration_s
    found.sort(key=lambda event: event[:2])
    return tuple(
        Scheduled(index, at, phase, spec, seed)
        for index, (at, _, phase, spec, seed) in enumerate(found[:MAX_EVENTS])
    )


def end_s(plan: Plan) -> float:
    """Returns when the last phase ends if nothing has to wait."""
    return plan.quiet_s + sum(phase.duration_s for phase in plan.phases)


def _times(spec: EventSpec, duration_s: float, draw: random.Random) -> list[float]:
    if spec.every_s is None:
        return list(spec.at_s)
    times: list[float] = []
    at = spec.every_s * draw.uniform(0.0, 1.0)
    while at < duration_s and len(times) < (MAX_EVENTS if spec.count is None else spec.count):
        times.append(at)
        at += spec.every_s * draw.uniform(_SHORTEST, 2.0 - _SHORTEST)
    return times
