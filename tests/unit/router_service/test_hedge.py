"""Hedges are few, and none are sent where load is the reason."""

from __future__ import annotations

import random

import pytest

from colibri.errors import ConfigError
from colibri.router_service.hedge import HedgeBudget, QueueTrend
from colibri.router_service.policy import FailoverPolicy


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_never_more_than_the_share_and_the_burst(share: float) -> None:
    rng = random.Random(1)
    budget = HedgeBudget(share, 4.0)
    messages = sent = 0
    for _ in range(5000):
        messages += rng.randrange(4)
        cost = rng.randrange(1, 4)
        if budget.take(messages, cost):
            sent += cost
            messages += cost
        assert sent <= share * messages + 4.0
    assert sent > 0.8 * share * messages


def test_a_burst_is_at_hand_from_the_start_and_again_after_a_while() -> None:
    budget = HedgeBudget(0.1, 3.0)
    assert [budget.take(0, 1) for _ in range(4)] == [True, True, True, False]
    assert not budget.take(9, 1)
    assert budget.take(10, 1)
    assert [budget.take(1000, 1) for _ in range(4)] == [True, True, True, False]
    assert not budget.take(1000, 1)


def test_a_share_of_nothing_hedges_nothing() -> None:
    budget = HedgeBudget(0.0, 4.0)
    assert not any(budget.take(messages, 1) for messages in range(1000))


def test_a_queue_that_grows() -> None:
    trend = QueueTrend()
    for _ in range(300):
        trend.add(100)
    assert not trend.grows
    for _ in range(2):
        trend.add(20_000)
    assert trend.grows
    for _ in range(30):
        trend.add(100)
    assert not trend.grows
    for _ in range(2000):
        trend.add(20_000)
    assert not trend.grows  # that is usual now


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hedge_budget", -0.1),
        ("hedge_budget", 1.1),
        ("hedge_budget", float("nan")),
        ("hedge_burst", 0.5),
        ("hedge_floor_s", 0.0),
        ("deadline_floor_s", -1.0),
        ("deadline_cold_s", 0.0),
        ("deadline_ceiling_s", 0.0),
        ("wait_for_holder_s", -1.0),
    ],
)
def test_values_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"^{field}: expected"):
        FailoverPolicy(**{field: value})  # type: ignore[arg-type]


def test_hedging_is_a_kind_of_failover() -> None:
    with pytest.raises(ConfigError, match="hedge: expected off without failover"):
        FailoverPolicy(failover=False)
    assert not FailoverPolicy(failover=False, hedge=False).hedge
