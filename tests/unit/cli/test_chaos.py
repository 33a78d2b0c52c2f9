"""`colibri chaos` as far as it goes without a server; the plans of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri.bench.chaos.plan_file import read_plan
from colibri.bench.chaos.schedule import schedule
from colibri.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
PLANS = sorted((ROOT / "docs" / "chaos").glob("*.yaml"))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_the_plans_of_the_docs_have_the_events_they_promise(path: Path) -> None:
    plan = read_plan(path)
    assert plan.limits.events >= 20
    assert len(schedule(plan)) >= plan.limits.events


def test_check_prints_the_events_and_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", str(ROOT / "docs/chaos/moves.yaml"), "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 22
    assert lines[0].split() == ["12.000", "s", "two", "to", "four", "scale", "4", "workers"]
    assert main(["chaos", str(ROOT / "docs/chaos/moves.yaml"), "--check", "--seed", "5"]) == 0
    assert capsys.readouterr().out.splitlines()[2] != lines[2]


def test_a_plan_without_a_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.yaml").write_text("{seed: 1, quiet: 2s, phases: [{name: p, duration: 1s}]}")
    assert main(["chaos", str(tmp_path / "p.yaml")]) == 1
    assert "serve.model: expected the checkpoint" in capsys.readouterr().err


def test_a_bad_plan_is_refused_with_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.yaml").write_text("{seed: 1, quiet: 1s, phase: []}")
    assert main(["chaos", str(tmp_path / "p.yaml")]) == 1
    assert "did you mean 'phases'?" in capsys.readouterr().err
