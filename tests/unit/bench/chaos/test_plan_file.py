"""Plan files: what they may hold, and how precisely anything else is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from colibri.bench.chaos.plan import Action, LinkQuality
from colibri.bench.chaos.plan_file import parse_plan, read_plan
from colibri.errors import ConfigError

TEXT = """
seed: 7
serve: {model: demo, workers: 3, replicas: 2, options: [--no-hedge]}
load: {users: 4, output_tokens: 20, request_timeout: 30s}
quiet: 2s
settle: 1m
network: {delay: 250us, rate: 1gbit, loss: 1%}
phases:
  - name: kills
    duration: 20s
    events:
      - {do: kill, every: 2s, count: 5}
      - {do: stop, worker: w1, at: [5s, 1s], for: 500ms, alone: false}
      - {do: slow, every: 3s, for: 1s, delay: 50ms, probability: 25%}
      - {do: link, at: 4s, for: 1s, delay: 2ms, loss: 0.5}
      - {do: scale, at: 0, workers: 4}
      - {do: move, every: 1s, layer: 3}
  - {name: calm, duration: 3s}
limits: {gap_over_quiet: 150ms, p99_over_quiet: 2.5, events: 20}
"""


def plan_with(**changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(TEXT)
    return {key: value for key, value in (data | changes).items() if value is not None}


def with_event(**event: Any) -> dict[str, Any]:
    return plan_with(phases=[{"name": "p", "duration": "10s", "events": [event]}])


def test_a_whole_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(TEXT)
    plan = read_plan(tmp_path / "plan.yaml")
    assert (plan.seed, plan.quiet_s, plan.settle_s) == (7, 2.0, 60.0)
    assert plan.serve is not None
    assert (plan.serve.workers, plan.serve.options) == (3, ("--no-hedge",))
    assert (plan.load.users, plan.load.request_timeout_s) == (4, 30.0)
    assert plan.network is not None
    assert plan.network.quality == LinkQuality(250e-6, 0.01, 1e9)
    kill, stop, slow, link, scale, move = plan.phases[0].events
    assert (kill.action, kill.every_s, kill.count, kill.alone, kill.worker) == (
        Action.KILL,
        2.0,
        5,
        True,
        "any",
    )
    assert (stop.at_s, stop.for_s, stop.worker, stop.alone) == ((1.0, 5.0), 0.5, "w1", False)
    assert (slow.delay_s, slow.probability, slow.alone) == (0.05, 0.25, False)
    assert link.link == LinkQuality(0.002, 0.5)
    assert (scale.workers, scale.at_s) == (4, (0.0,))
    assert (move.layer, move.expert, move.to) == (3, None, None)
    assert plan.limits.gap_over_quiet_s == 0.15


@pytest.mark.parametrize(
    ("data", "field", "text"),
    [
        (plan_with(sed=3), "sed", "did you mean 'seed'"),
        (plan_with(seed=None), "seed", "a value"),
        (plan_with(seed=True), "seed", "a whole number"),
        (plan_with(quiet="1s"), "quiet", "more than 1 s"),
        (plan_with(quiet=5), "quiet", "a time such as"),
        (plan_with(quiet="5 parsecs"), "quiet", "a time such as"),
        (plan_with(network=None), "network", "link"),
        (plan_with(serve=None), "serve", "network"),
        (plan_with(serve={"model": "m", "workers": 2, "replicas": 3}), "serve.replicas", "at most 2"),
        (plan_with(serve={"model": "m", "workrs": 2}), "serve.workrs", "did you mean 'workers'"),
        (plan_with(phases=[]), "phases", "at least one"),
        (plan_with(phases={}), "phases", "a list"),
        (plan_with(limits={"gap_over_quit": "1s"}), "limits.gap_over_quit", "did you mean 'gap_over_quiet'"),
        (with_event(do="kil", at="1s"), "phases[0].events[0].do", "did you mean 'kill'"),
        (with_event(at="1s"), "phases[0].events[0].do", "one of"),
        (with_event(do="kill"), "phases[0].events[0]", "either 'at' or 'every'"),
        (with_event(do="kill", at="1s", every="1s"), "phases[0].events[0]", "either"),
        (with_event(do="kill", every="0s"), "phases[0].events[0].every", "more than 0"),
        (with_event(do="kill", at="1s", count=3), "phases[0].events[0].count", "'every' beside it"),
        (with_event(do="kill", at="1s", alone=True, leaving=1), "phases[0].events[0].leaving", "alone"),
        (with_event(do="kill", at="10s"), "phases[0].events[0].at", "below the phase's 10 s"),
        (with_event(do="kill", at="1s", delay="1s"), "phases[0].events[0].delay", "unknown key"),
        (with_event(do="kill", at="1s", **{"for": "1s"}), "phases[0].events[0].for", "unknown key"),
        (with_event(do="stop", at="1s"), "phases[0].events[0].for", "a value"),
        (with_event(do="slow", at="1s", **{"for": "1s"}), "phases[0].events[0].delay", "a value"),
        (
            with_event(do="slow", at="1s", delay="0s", **{"for": "1s"}),
            "phases[0].events[0].delay",
            "more than 0",
        ),
        (with_event(do="link", at="1s", **{"for": "1s"}), "phases[0].events[0]", "one of delay"),
        (
            with_event(do="corrupt", at="1s", probability=2, **{"for": "1s"}),
            "phases[0].events[0].probability",
            "",
        ),
        (with_event(do="scale", at="1s"), "phases[0].events[0].workers", "a value"),
        ([], "plan", "a mapping"),
        ("text", "plan", "a mapping"),
    ],
)
def test_what_is_refused(data: object, field: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_plan(data)
    assert caught.value.field == field
    assert text in str(caught.value)


@pytest.mark.parametrize("text", [b"a: [", b"\xff\xfe\x00", b"a: !!python/object:os.system {}", b"[" * 3000])
def test_what_is_no_yaml_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "plan.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match=r"plan\.yaml"):
        read_plan(tmp_path / "plan.yaml")
    with pytest.raises(ConfigError, match="a file that can be read"):
        read_plan(tmp_path / "absent.yaml")
