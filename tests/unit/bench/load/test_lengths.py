from __future__ import annotations

import numpy as np
import pytest

from colibri.bench.load.lengths import Fixed, Lengths, LogNormal, Uniform, parse_lengths
from colibri.errors import ConfigError


def draws(lengths: Lengths, count: int = 20_000) -> np.ndarray:
    rng = np.random.default_rng(7)
    return np.array([lengths.draw(rng) for _ in range(count)])


def test_fixed() -> None:
    assert set(draws(Fixed(12), 50)) == {12}


def test_uniform_reaches_both_ends_evenly() -> None:
    drawn = draws(Uniform(3, 6))
    counts = np.bincount(drawn, minlength=7)
    assert counts[:3].sum() == 0
    assert counts[3:] == pytest.approx(np.full(4, 5000), rel=0.06)


def test_lognormal_has_its_median_and_deviation() -> None:
    drawn = draws(LogNormal(200.0, 0.5, 100_000))
    assert np.median(drawn) == pytest.approx(200, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(0.5, rel=0.03)


def test_lognormal_stays_inside_its_bounds() -> None:
    drawn = draws(LogNormal(4.0, 2.0, 30))
    assert drawn.min() == 1
    assert drawn.max() == 30
    assert set(draws(LogNormal(5.0, 0.0, 9), 20)) == {5}


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("64", Fixed(64)),
        ("uniform:8:32", Uniform(8, 32)),
        ("lognormal:128:0.6:1024", LogNormal(128.0, 0.6, 1024)),
    ],
)
def test_parsed(text: str, lengths: Lengths) -> None:
    assert parse_lengths(text, "--input-len") == lengths


@pytest.mark.parametrize(
    "text",
    ["", "0", "-3", "x", "1.5", "uniform:8", "uniform:9:8", "uniform:0:4", "lognormal:5:1", "lognormal:9:1:8",
     "lognormal:4:nan:8", "normal:1:2", "99999999999", "uniform:1:2:3"],
)  # fmt: skip
def test_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--input-len: expected "):
        parse_lengths(text, "--input-len")
