"""Arrival processes at fixed seeds: their means, their spread, their bounds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from colibri.bench.load.arrivals import ClosedLoop, OpenLoop, gamma, limited, poisson
from colibri.errors import ConfigError

DRAWS = 20_000


def gaps(burstiness: float, rate: float = 50.0, seed: int = 1) -> np.ndarray:
    times = np.fromiter(itertools.islice(gamma(rate, burstiness, seed), DRAWS), dtype=float)
    return np.diff(times, prepend=0.0)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_spread_of_their_gamma(burstiness: float) -> None:
    drawn = gaps(burstiness)
    assert (drawn >= 0).all()
    assert drawn.mean() == pytest.approx(1 / 50.0, rel=0.05)
    # A gamma's coefficient of variation is 1 / sqrt(shape).
    assert drawn.std() / drawn.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_poisson_counts_have_equal_mean_and_variance() -> None:
    times = np.fromiter(itertools.islice(poisson(20.0, 3), DRAWS), dtype=float)
    counts = np.bincount(times.astype(int))[:-1]
    assert counts.mean() == pytest.approx(20.0, rel=0.05)
    assert counts.var() == pytest.approx(20.0, rel=0.2)


def test_same_seed_same_times() -> None:
    def times(seed: int) -> list[float]:
        return list(itertools.islice(poisson(5.0, seed), 700))

    assert times(4) == times(4)
    assert times(4) != times(5)


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert limited(gamma(float("inf"), 1.0, 0), 5, None) == OpenLoop((0.0,) * 5)


def test_limited_by_number_and_by_time() -> None:
    times = list(itertools.islice(poisson(10.0, 2), 100))
    assert limited(poisson(10.0, 2), 7, None).offsets == tuple(times[:7])
    until = limited(poisson(10.0, 2), None, 3.0).offsets
    assert until == tuple(at for at in times if at < 3.0)
    assert limited(poisson(10.0, 2), 7, 0.9).offsets == tuple(at for at in times[:7] if at < 0.9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: next(poisson(0.0, 1)),
        lambda: next(poisson(float("nan"), 1)),
        lambda: next(gamma(1.0, 0.0, 1)),
        lambda: limited(poisson(1.0, 1), None, None),
        lambda: limited(poisson(1.0, 1), 0, None),
        lambda: limited(poisson(1e-9, 1), 5, 1.0),
        lambda: OpenLoop((1.0, 0.5)),
        lambda: OpenLoop((-1.0,)),
        lambda: ClosedLoop(0),
        lambda: ClosedLoop(1, requests=0),
        lambda: ClosedLoop(1, duration_s=0.0),
        lambda: ClosedLoop(1, think_s=-1.0),
    ],
)
def test_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError):
        make()
