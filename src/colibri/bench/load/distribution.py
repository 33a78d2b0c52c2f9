"""A set of durations in an HDR histogram: microseconds up to a day, three significant digits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colibri.errors import ConfigError
from colibri.installation import extra_command

_HIGHEST_US = 24 * 3600 * 1_000_000
_DIGITS = 3
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds. mean, std (of the population), smallest and largest are exact, percentiles within 0.1 %.

    histogram: the HDR histogram, encoded as its libraries do, so that runs can be merged.
    """

    count: int
    mean: float
    std: float
    smallest: float
    largest: float
    percentiles: Mapping[float, float]
    histogram: str

    @property
    def median(self) -> float:
        return self.percentiles[50.0]

    def resolves(self, percentile: float) -> bool:
        """Whether a sample lies beyond that percentile; otherwise it is the largest value by another
        name."""
        return self.count * (100.0 - percentile) > 99.999  # 1000 samples resolve p99.9


def require_histograms() -> type[Any]:
    """The class HdrHistogram. Raises ConfigError naming the extra that brings it."""
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError as error:
        raise ConfigError("load harness", f"the extra 'bench': {extra_command('bench')}", error) from error
    return HdrHistogram  # type: ignore[no-any-return]


def distribution(seconds: Iterable[float], percentiles: Sequence[float] = PERCENTILES) -> Distribution | None:
    """None of no values. The median is always among the percentiles."""
    values = list(seconds)
    if not values:
        return None
    histogram = require_histograms()(1, _HIGHEST_US, _DIGITS)
    for value in values:
        histogram.record_value(min(max(0, round(value * 1e6)), _HIGHEST_US))
    wanted = sorted({50.0, *percentiles})
    found = histogram.get_percentile_to_value_dict(wanted)
    mean, largest = math.fsum(values) / len(values), max(values)
    return Distribution(
        count=len(values),
        mean=mean,
        std=math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)),
        smallest=min(values),
        largest=largest,
        # A bucket's upper end may lie above everything that is in it.
        percentiles={percentile: min(found[percentile] * 1e-6, largest) for percentile in wanted},
        histogram=histogram.encode().decode("ascii"),
    )
