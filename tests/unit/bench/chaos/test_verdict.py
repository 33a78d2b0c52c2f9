"""What passes and what does not, on runs made up by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from colibri.bench.chaos.plan import Limits
from colibri.bench.chaos.timeline import MomentKind
from colibri.bench.chaos.verdict import judge
from colibri.bench.load.oracle import OracleReport, Wrong
from colibri.bench.load.record import STOPPED
from tests.unit.bench.chaos.results import GOOD, moment, record, result, steady

QUIET, BUSY = steady(0, 0.5, 10.0, 0.02), steady(1, 10.0, 29.0, 0.02)
STALLED = record(2, [12.0, 12.02, 12.32, 12.34])


def test_a_good_run_passes() -> None:
    verdict = judge(result([QUIET, BUSY]), GOOD)
    assert verdict.passed
    assert verdict.quiet.p99_s == pytest.approx(0.02)
    assert verdict.p99_ratio == pytest.approx(1.0)
    assert (verdict.failed, verdict.events, verdict.completed) == (0, 2, 2)


def test_the_largest_gap_counts_from_the_quiet_p99() -> None:
    limits = Limits(gap_over_quiet_s=0.15)
    verdict = judge(result([QUIET, BUSY, STALLED], limits), GOOD)
    assert verdict.chaos.largest_s == pytest.approx(0.3)
    assert verdict.over_quiet_s == pytest.approx(0.28)
    assert not verdict.passed
    assert "280 ms above the quiet p99 of 20 ms" in verdict.reasons[0]
    assert judge(result([QUIET, BUSY, STALLED], replace(limits, gap_over_quiet_s=0.3)), GOOD).passed


def test_gaps_of_the_first_second_and_of_quiet_are_not_the_events() -> None:
    early = record(3, [0.1, 0.9])
    verdict = judge(result([QUIET, BUSY, early], Limits(gap_over_quiet_s=0.1)), GOOD)
    assert verdict.passed
    assert verdict.quiet.largest_s == pytest.approx(0.02)


def test_the_ratio_of_the_p99s() -> None:
    slower = steady(1, 10.0, 29.0, 0.06)
    assert not judge(result([QUIET, slower], Limits(p99_over_quiet=2.5)), GOOD).passed
    assert judge(result([QUIET, slower], Limits(p99_over_quiet=3.5)), GOOD).passed


@pytest.mark.parametrize(
    ("changes", "oracle", "reason"),
    [
        ({"records": (QUIET, BUSY, record(5, [11.0], "WorkerLost"))}, GOOD, "1 requests failed"),
        ({}, replace(GOOD, wrong=(Wrong(4, 2, "expected token 5, got 6"),)), "expected token 5, got 6"),
        ({}, OracleReport(0, 0, 0, ()), "no answer could be compared"),
        ({"events": {}}, GOOD, "0 events happened, 1 must"),
        ({"problem": "worker w1 is waiting"}, GOOD, "worker w1 is waiting"),
        ({"reused": ("w1/4",)}, GOOD, "w1/4"),
        ({"records": ()}, GOOD, "too few tokens"),
    ],
)
def test_what_does_not_pass(changes: dict[str, Any], oracle: OracleReport, reason: str) -> None:
    usual: dict[str, Any] = {"records": (QUIET, BUSY), "limits": Limits(events=1)}
    verdict = judge(result(**(usual | changes)), oracle)
    assert not verdict.passed
    assert any(reason in text for text in verdict.reasons)


def test_a_request_that_the_end_cut_off_is_no_failure() -> None:
    assert judge(result([QUIET, BUSY, record(5, [28.0], STOPPED)]), GOOD).passed


def test_each_gap_belongs_to_every_event_it_overlaps() -> None:
    moments = tuple(moment(at, MomentKind.EVENT, "kill", number=n) for n, at in enumerate((11.0, 12.1, 20.0)))
    verdict = judge(result([QUIET, BUSY, STALLED, record(6, [11.5, 12.2])], moments=moments), GOOD)
    assert [after.gap_s for after in verdict.after] == pytest.approx([0.7, 0.7, 0.02])


def test_phases_have_gaps_of_their_own() -> None:
    moments = tuple(
        moment(at, MomentKind.PHASE, name, "") for at, name in ((0.0, "quiet"), (10.0, "one"), (15.0, "two"))
    )
    verdict = judge(result([QUIET, BUSY, STALLED], moments=moments), GOOD)
    assert [(name, round(gaps.largest_s, 3)) for name, gaps in verdict.phases] == [
        ("one", 0.3),
        ("two", 0.02),
    ]
    assert sum(gaps.count for _, gaps in verdict.phases) == verdict.chaos.count
    assert judge(result([QUIET, BUSY]), GOOD).phases == ()
