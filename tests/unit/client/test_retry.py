"""Waits between attempts: advised, growing, bounded by count, by time without news and by the deadline."""

from __future__ import annotations

import pytest

from colibri.client.retry import Attempts, Retry
from colibri.deadline import Deadline
from colibri.errors import Busy, ConfigError, DeadlineExpired, InvalidInput, WorkerLost

LOST = WorkerLost("gone")


class Time:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def attempts(
    retry: Retry | None, deadline_s: float | None = None, draw: float = 1.0
) -> tuple[Attempts, Time]:
    clock = Time()
    return Attempts(retry, Deadline.after(deadline_s, clock), clock, lambda: draw), clock


def test_without_retry_nothing_is_asked_again() -> None:
    assert attempts(None)[0].wait_after(LOST) is None


@pytest.mark.parametrize("error", [InvalidInput("n", "1", 0), DeadlineExpired("late")])
def test_only_what_advises_it(error: InvalidInput | DeadlineExpired) -> None:
    assert attempts(Retry())[0].wait_after(error) is None
    assert attempts(Retry())[0].wait_after(error, retryable=True) is not None


def test_waits_grow_to_the_longest() -> None:
    found, _ = attempts(Retry(first_wait_s=0.1, factor=3.0, longest_wait_s=1.0))
    assert [found.wait_after(LOST) for _ in range(4)] == pytest.approx([0.1, 0.3, 0.9, 1.0])


def test_a_draw_halves_a_wait_at_most() -> None:
    assert attempts(Retry(first_wait_s=0.2), draw=0.0)[0].wait_after(LOST) == pytest.approx(0.1)


def test_the_servers_advice_is_never_undercut() -> None:
    found, _ = attempts(Retry(), draw=0.0)
    assert found.wait_after(Busy("full", retry_after_s=7.5)) == 7.5


def test_a_count_bounds_it_and_news_begin_it_anew() -> None:
    found, _ = attempts(Retry(attempts=2, first_wait_s=0.0))
    for _ in range(3):
        assert [found.wait_after(LOST) for _ in range(3)] == [0.0, 0.0, None]
        found.news()
        assert found.failures == 0


def test_time_without_news_bounds_it() -> None:
    found, clock = attempts(Retry(within_s=10.0, first_wait_s=1.0, longest_wait_s=1.0))
    clock.now += 8.5
    assert found.wait_after(LOST) == 1.0
    clock.now += 1.0
    assert found.wait_after(LOST) is None
    found.news()
    assert found.wait_after(LOST) == 1.0


def test_the_deadline_bounds_it() -> None:
    found, clock = attempts(Retry(first_wait_s=1.0), deadline_s=2.0)
    assert found.remaining_s() == 2.0
    clock.now += 0.5
    assert found.wait_after(LOST) == 1.0
    clock.now += 1.0
    assert found.wait_after(LOST) is None
    assert found.remaining_s() == 0.5


def test_no_wait_is_beyond_a_float() -> None:
    found, _ = attempts(Retry(attempts=5000, within_s=1e9))
    assert [found.wait_after(LOST) for _ in range(5000)][-1] == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", 0),
        ("within_s", -1.0),
        ("within_s", float("inf")),
        ("first_wait_s", float("nan")),
        ("factor", 0.5),
        ("longest_wait_s", -0.1),
    ],
)
def test_bad_values_are_named(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"retry.{field}: expected"):
        Retry(**{field: value})  # type: ignore[arg-type]
