"""A short seeded plan with real SIGKILL and SIGSTOP, bad replies and moves, in every run of the tests: no request
fails, no token changes. Nothing is said of times here: this machine may be busy."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from colibri.bench.chaos.network.build import why_not
from colibri.bench.chaos.picture import draw
from colibri.bench.chaos.plan import Action, EventSpec, Limits, LoadSpec, NetworkSpec, Phase, Plan, ServeSpec
from colibri.bench.chaos.plan_file import read_plan
from colibri.bench.chaos.report import document, lines
from colibri.bench.chaos.run import run_plan

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
    # Three first lives, one more for each kill, the fourth worker.
    assert result.lives >= 8
    assert result.reused == ()
    assert sum(result.injected.values()) > 0
    assert result.routing["failovers"] > 0
    json.dumps(document(result, verdict))
    assert draw(result, verdict, "ci").startswith("<svg")


def test_the_mtls_plan(tiny_mixtral: Path) -> None:
    result, verdict = run_plan(on_tiny(read_plan(PLAN.with_name("mtls.yaml")), tiny_mixtral), tell=print)
    print("\n".join(lines(result, verdict)))

    assert verdict.reasons == ()
    assert (verdict.failed, verdict.wrong) == (0, ())
    assert verdict.completed > 5
    assert result.events[Action.KILL] == 2
    assert result.reused == ()
    assert sum(result.injected.values()) > 0


def test_the_command_tells_that_limits_did_not_hold(tiny_mixtral: Path, tmp_path: Path) -> None:
    plan = {
        "seed": 3,
        "serve": {"model": str(tiny_mixtral), "workers": 2, "replicas": 2},
        "load": {"users": 2, "prompt_tokens": 8, "output_tokens": 20, "distinct": 4},
        "quiet": "1500ms",
        "phases": [{"name": "one kill", "duration": "1s", "events": [{"do": "kill", "at": "0s"}]}],
        "limits": {"events": 2},
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    options = ["--json", "--svg", str(tmp_path / "run.svg"), "--server-log", str(tmp_path / "log")]
    command = [sys.executable, "-m", "colibri.cli.main", "chaos", str(tmp_path / "plan.yaml"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["reasons"] == ["1 events happened, 2 must"]
    assert (found["failed"], found["wrong"], found["events"]) == (0, [], {"kill": 1})
    assert "SIGKILL" in (tmp_path / "log").read_text()
    assert (tmp_path / "run.svg").read_text().startswith("<svg")


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
