from __future__ import annotations

import os
from pathlib import Path

import pytest

from colibri.deployment.phases import Phases, process_age_s


def test_marks_count_from_the_start_of_the_process() -> None:
    times = iter([100.0, 101.0, 103.5, 104.0])
    phases = Phases(age_s=0.5, clock=lambda: next(times))
    phases.mark("checkpoint")
    phases.mark("workers up")
    phases.mark("first token")
    assert phases.since_start() == {"checkpoint": 1.5, "workers up": 4.0, "first token": 4.5}
    assert [line.split()[-5:-3] for line in phases.lines()] == [["1.50", "s"], ["2.50", "s"], ["0.50", "s"]]


def test_the_first_mark_of_a_name_counts() -> None:
    times = iter([0.0, 1.0, 2.0])
    phases = Phases(clock=lambda: next(times))
    phases.mark("first token")
    phases.mark("first token")
    assert phases.since_start() == {"first token": 1.0}


def test_age_of_a_made_up_process(tmp_path: Path) -> None:
    """The name of a program may hold spaces and brackets."""
    fields = ["S", *["0"] * 18, str(500 * os.sysconf("SC_CLK_TCK")), "0"]
    (tmp_path / "self").mkdir()
    (tmp_path / "self/stat").write_text(f"7 (a (strange) name) {' '.join(fields)}\n")
    assert process_age_s(tmp_path, lambda: 512.25) == pytest.approx(12.25)


def test_age_of_this_process_is_positive() -> None:
    assert 0.0 < process_age_s() < 7 * 86400
