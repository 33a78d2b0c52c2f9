"""When a message is late and when it is lost, from what was measured; conservative before anything was."""

from __future__ import annotations

import math

import numpy as np
import pytest

from colibri.router_service.latency import SAMPLES, WARM_SAMPLES, LatencyModel, Window, quantile
from colibri.router_service.policy import FailoverPolicy

POLICY = FailoverPolicy()
SIZE = (4).bit_length()


def measured(seconds: float, count: int = SAMPLES, size: int = SIZE) -> tuple[LatencyModel, Window]:
    model = LatencyModel(POLICY)
    window = model.windows[size]
    for _ in range(count):
        window.add(seconds, exact=True)
    return model, window


@pytest.mark.parametrize("q", [0.0, 0.5, 0.9, 0.99, 1.0])
def test_quantiles_cover_their_share(q: float) -> None:
    values = np.random.default_rng(1).random(101).tolist()
    value = quantile(values, q)
    assert value in values
    assert sum(v <= value for v in values) >= q * len(values)
    assert quantile([], q) == 0.0
    assert quantile([3.0], q) == 3.0


def test_cold_bounds_are_generous_and_grow_with_the_message() -> None:
    windows = LatencyModel(POLICY).windows
    assert all(window.hedge_after == math.inf for window in windows)
    assert windows[1].deadline_after == windows[SIZE].deadline_after == 1.0
    assert windows[(2048).bit_length()].deadline_after == POLICY.deadline_ceiling_s
    bounds = [window.deadline_after for window in windows]
    assert bounds == sorted(bounds)
    _, window = measured(0.001, WARM_SAMPLES - 1)
    assert (window.hedge_after, window.deadline_after) == (math.inf, 1.0)


@pytest.mark.parametrize(
    ("seconds", "late", "lost"),
    [
        (100e-6, 0.005, 0.1),  # floors
        (0.010, 0.015, 0.1),
        (0.050, 0.075, 0.3),
        (10.0, 15.0, 30.0),  # ceiling
    ],
)
def test_bounds_follow_the_answers(seconds: float, late: float, lost: float) -> None:
    _, window = measured(seconds)
    assert window.hedge_after == pytest.approx(late)
    assert window.deadline_after == pytest.approx(lost)


def test_rare_outliers_do_not_move_the_bounds_and_a_change_does() -> None:
    model, window = measured(0.010)
    window.add(3.0, exact=True)
    model.refresh(window)
    assert window.deadline_after == pytest.approx(0.1)
    for _ in range(SAMPLES + 64):  # bounds are computed anew every 64 answers
        window.add(0.040, exact=True)
    assert window.deadline_after == pytest.approx(0.24)
    for _ in range(SAMPLES + 64):
        window.add(0.001, exact=True)
    assert window.deadline_after == pytest.approx(0.1)


def test_other_sizes_are_judged_by_the_nearest() -> None:
    model, _ = measured(0.100, size=4)
    larger, smaller = model.windows[7], model.windows[2]
    # Eight times the entries take at most eight times as long.
    assert larger.hedge_after == pytest.approx(1.5 * 0.8)
    assert larger.deadline_after == pytest.approx(6 * 0.8)
    # Fewer take no longer; a size never measured is given a cold deadline at least.
    assert smaller.hedge_after == pytest.approx(0.15)
    assert smaller.deadline_after == 1.0
    for _ in range(WARM_SAMPLES):
        larger.add(0.2, exact=False)
    assert larger.deadline_after == pytest.approx(1.2)


def test_only_answers_that_were_waited_for_are_evidence() -> None:
    _, window = measured(0.001, 8)
    for _ in range(50):
        window.add(0.9, exact=False)
    assert window.exact_count == 8
    assert window.median() == 0.001
    assert sorted(window.last_exact(3)) == [0.001] * 3
    window.add(0.7, exact=True)
    assert window.last_exact(1) == [0.7]
    window.forget_exact()
    assert (window.median(), window.last_exact(5)) == (0.0, [])


def test_without_failover_there_is_one_bound() -> None:
    model = LatencyModel(FailoverPolicy(failover=False, hedge=False, deadline_ceiling_s=7.0))
    for window in model.windows:
        for _ in range(WARM_SAMPLES):
            window.add(0.001, exact=True)
        assert (window.hedge_after, window.deadline_after) == (math.inf, 7.0)


def test_percentiles_are_over_all_sizes() -> None:
    model, _ = measured(0.001, 99)
    model.windows[9].add(1.0, exact=False)
    assert model.percentile(0.5) == 0.001
    assert model.percentile(1.0) == 1.0
    assert LatencyModel(POLICY).percentile(0.5) == 0.0


def test_a_new_worker_is_expected_to_be_like_the_others() -> None:
    policy = FailoverPolicy()
    model = LatencyModel(policy, {3: 0.02})
    window = model.windows[3]
    assert (window.hedge_after, window.deadline_after) == (pytest.approx(0.03), pytest.approx(0.12))
    assert model.windows[2].hedge_after == math.inf
    for _ in range(64):
        window.add(0.05, True)
    assert (window.hedge_after, window.deadline_after) == (pytest.approx(0.075), pytest.approx(0.3))
    assert model.usual() == {3: pytest.approx(0.05)}
