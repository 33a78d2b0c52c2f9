from __future__ import annotations

import pytest

from colibri.bench.load.record import BOUND_EXCEEDED, Failure
from colibri.bench.load.validity import ValidityBounds, judge_run
from colibri.errors import ConfigError
from tests.support.load_records import record, run_result

GOOD = [record(i, scheduled=100.0 + i, sent=100.0 + i + 0.002, token_times=[101.0 + i]) for i in range(5)]


def test_valid() -> None:
    validity = judge_run(run_result(GOOD))
    assert validity.valid
    assert validity.send_lag is not None
    assert validity.send_lag.largest == pytest.approx(0.002)
    assert validity.loop_cpu_share == pytest.approx(0.01)
    assert validity.process_cpu_share == pytest.approx(0.02)


def test_late_sends() -> None:
    late = [*GOOD, record(9, scheduled=105.0, sent=105.1, token_times=[106.0])]
    assert judge_run(run_result(late)).reasons == ("sends ran late: p99 100.0 ms, allowed 25 ms",)
    assert judge_run(run_result(late), ValidityBounds(lag_p99_s=0.2)).valid


def test_a_late_loop() -> None:
    [reason] = judge_run(run_result(GOOD, lateness=[0.001, 0.2])).reasons
    assert "the event loop ran late" in reason


def test_the_declared_bound() -> None:
    unsent = record(9, failure=Failure(BOUND_EXCEEDED, ""))
    [reason] = judge_run(run_result([*GOOD, unsent])).reasons
    assert reason.startswith("1 requests were not sent: the declared bound of 128 in flight")


def test_a_saturated_generator() -> None:
    [reason] = judge_run(run_result(GOOD, loop_cpu_s=9.0)).reasons
    assert "90% of a core" in reason


def test_an_empty_run() -> None:
    assert judge_run(run_result([])).reasons == ("no request was made",)


def test_bounds_refused() -> None:
    with pytest.raises(ConfigError):
        ValidityBounds(lag_p99_s=0.0)
