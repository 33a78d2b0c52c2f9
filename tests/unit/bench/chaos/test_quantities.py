"""Quantities as people write them."""

from __future__ import annotations

import pytest

from colibri.bench.chaos.quantities import parse_rate, parse_seconds, parse_share
from colibri.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"), [("150ms", 0.15), ("2s", 2.0), ("1.5 m", 90.0), ("20us", 2e-5), (0, 0.0), ("0", 0.0)]
)
def test_times(text: object, seconds: float) -> None:
    assert parse_seconds(text, "t") == pytest.approx(seconds)


@pytest.mark.parametrize("text", [2, "2", "s", "-1s", "1h", "99999m", "", None, True, "1e3s", "nan"])
def test_what_is_no_time(text: object) -> None:
    with pytest.raises(ConfigError, match=r"^t: expected a time"):
        parse_seconds(text, "t")


def test_rates_and_shares() -> None:
    assert parse_rate("1gbit", "r") == 1e9
    assert parse_rate("100 Mbit", "r") == 1e8
    assert parse_share("25%", "s") == 0.25
    assert parse_share(0.5, "s") == 0.5
    for bad in ("1kb", "0gbit", 5):
        with pytest.raises(ConfigError, match=r"^r: "):
            parse_rate(bad, "r")
    for bad in ("150%", 2, "-1"):
        with pytest.raises(ConfigError, match=r"^s: "):
            parse_share(bad, "s")
