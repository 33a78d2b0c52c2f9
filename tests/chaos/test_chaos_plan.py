"""A short seeded plan with real SIGKILL and SIGSTOP, bad replies and moves, in every run of the tests: no request
fails, no token changes. Nothing is said of times here: this machine may be busy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from colibri.chaos.network.build import why_not
from colibri.chaos.picture import draw
from colibri.chaos.plan import Action, EventSpec, Limits, LoadSpec, NetworkSpec, Phase, Plan, ServeSpec
from colibri.chaos.plan_file import read_plan
from colibri.chaos.report import document, lines
from colibri.cli.chaos_run import run_plan

PLAN = Path(__file__).with_name("ci.yaml")
NO_NETWORK = why_not()


def on_tiny(plan: Plan, model: Path) -> Plan:
    assert plan.serve is not None
    return replace(plan, serve=replace(plan.serve, model=str(model)))


def test_the_ci_plan(tiny_mixtral: Path) -> None:
    result, verdict = run_plan(on_tiny(read_plan(PLAN), tiny_mixtral), tell=print)
    print("\n".join(lines(result, verdict)))

    assert verdict.reasons == ()
    assert (verdict.failed, verdict.wrong) == (0, ())
    assert verdict.completed > 20
    assert result.events[Action.KILL] == 4
    assert result.events[Action.STOP] == 2
    # Three first lives, one more for each kill, one for the fourth worker, one for the drained one at most.
    assert 8 <= result.lives <= 10
    assert result.reused == ()
    assert sum(result.injected.values()) > 0
    assert result.routing["failovers"] > 0
    json.dumps(document(result, verdict))
    assert draw(result, verdict, "ci").startswith("<svg")


@pytest.mark.skipif(bool(NO_NETWORK), reason=NO_NETWORK or "network namespaces work here")
def test_links_that_pass_nothing(tiny_mixtral: Path) -> None:
    """Workers in namespaces of their own, reached over TCP; their links are cut and lose packets."""
    events = (
        EventSpec(Action.LINK_DOWN, every_s=1.0, count=3, for_s=0.5, alone=True),
        EventSpec(Action.KILL, at_s=(1.0,), alone=True),
    )
    plan = Plan(
        seed=1906,
        quiet_s=1.5,
        phases=(Phase("links", 4.0, events),),
        load=LoadSpec(users=4, prompt_tokens=12, output_tokens=40, distinct=12),
        serve=ServeSpec(str(tiny_mixtral), 3, 2),
        network=NetworkSpec(),
        limits=Limits(events=4),
    )
    result, verdict = run_plan(plan, tell=print)
    print("\n".join(lines(result, verdict)))
    assert verdict.reasons == ()
    assert verdict.completed > 5
