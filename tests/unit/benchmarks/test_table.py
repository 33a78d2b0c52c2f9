"""Reach tables: what is met, missed, waived, and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.table import Line, Outcome, run_table


def test_a_waived_line_is_printed_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        Line("there", "a", "1", lambda: Outcome("1", True)),
        Line("gpu", "b", "2", lambda: Outcome("not measured", True, waived="no GPU")),
    ]
    file = tmp_path / "t.json"
    assert run_table("topic", lines, file) == 0
    said = capsys.readouterr()
    assert "| gpu | not measured | 2 |  | waived: no GPU |" in said.out
    assert "2 of 2 met, of which 1 waived" in said.out
    assert "not measured (waived: no GPU" in said.err
    assert [line["waived"] for line in json.loads(file.read_text())["lines"]] == ["", "no GPU"]


def test_a_missed_line_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_table("topic", [Line("x", "a", "1", lambda: Outcome("0", False))], None) == 1
    assert "not met: x" in capsys.readouterr().out
