"""When events happen: by seed alone, within their phases."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from colibri.bench.chaos.plan import Action, EventSpec, Phase, Plan
from colibri.bench.chaos.schedule import end_s, schedule

KILLS = EventSpec(Action.KILL, every_s=2.0)
STOPS = EventSpec(Action.STOP, at_s=(1.0, 4.0), for_s=0.5)
PLAN = Plan(seed=3, quiet_s=5.0, phases=(Phase("one", 60.0, (KILLS, STOPS)), Phase("two", 10.0, (KILLS,))))


def test_the_seed_decides_everything() -> None:
    assert schedule(PLAN) == schedule(PLAN)
    assert schedule(PLAN) != schedule(replace(PLAN, seed=4))


def test_events_lie_in_their_phases_in_order_of_time() -> None:
    events = schedule(PLAN)
    assert [event.number for event in events] == list(range(len(events)))
    assert [event.at_s for event in events] == sorted(event.at_s for event in events)
    for event in events:
        begin, end = (5.0, 65.0) if event.phase == "one" else (65.0, 75.0)
        assert begin <= event.at_s < end
    assert end_s(PLAN) == 75.0
    assert [e.at_s for e in events if e.spec is STOPS] == [6.0, 9.0]


def test_intervals_vary_around_what_was_asked_for() -> None:
    times = [e.at_s for e in schedule(PLAN) if e.spec is KILLS and e.phase == "one"]
    gaps = [after - before for before, after in pairwise(times)]
    assert 22 <= len(times) <= 40
    assert all(1.5 <= gap <= 2.5 for gap in gaps)
    assert len(set(gaps)) == len(gaps)


def test_a_new_line_moves_no_other_lines_events() -> None:
    more = replace(PLAN.phases[0], events=(*PLAN.phases[0].events, EventSpec(Action.MOVE, every_s=1.0)))
    longer = schedule(replace(PLAN, phases=(more, PLAN.phases[1])))
    before = [(e.at_s, e.draw, e.spec) for e in schedule(PLAN)]
    assert [(e.at_s, e.draw, e.spec) for e in longer if e.spec.action is not Action.MOVE] == before


def test_count_bounds() -> None:
    few = replace(PLAN, phases=(Phase("one", 60.0, (replace(KILLS, count=3),)),))
    assert len(schedule(few)) == 3
