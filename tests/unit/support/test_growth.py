"""A plateau is flat, a leak is not, however slow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.growth import assert_flat


def following(*values: int) -> Iterator[dict[str, int]]:
    yield from ({"rss 1": value, "fds": 3} for value in values)


@pytest.mark.parametrize(
    "values", [(0, 0), (0, 10), (0, 90, 100), (0, 90, 180, 270, 270), (0, 90, 80)], ids=str
)
def test_what_stays_somewhere_is_flat(values: tuple[int, ...]) -> None:
    readings, worked = following(*values), [0]
    assert_flat(lambda: worked.append(1), lambda: next(readings), {"rss": 10, "fds": 0})
    assert sum(worked) == len(values) - 1


def test_what_grows_each_time_is_a_leak() -> None:
    readings = following(0, 11, 22, 33, 44)
    with pytest.raises(AssertionError, match=r"each of 4 rounds: \{'rss 1': \[11, 11, 11, 11\]\}"):
        assert_flat(lambda: None, lambda: next(readings), {"rss": 10, "fds": 0})


def test_each_measure_needs_a_round_of_its_own() -> None:
    readings = iter([{"rss": 0, "fds": 0}, {"rss": 20, "fds": 0}, {"rss": 20, "fds": 5}])
    assert_flat(lambda: None, lambda: next(readings), {"rss": 10, "fds": 4})


def test_a_process_that_is_gone_is_no_plateau() -> None:
    readings = iter([{"rss 1": 0, "rss 2": 0}, {"rss 1": 0}])
    with pytest.raises(AssertionError, match="no longer the same"):
        assert_flat(lambda: None, lambda: next(readings), {"rss": 10})
