"""Service level objectives: bounds that a request meets or not. Goodput counts those that meet all."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from colibri.bench.load.record import RequestRecord
from colibri.errors import ConfigError

#: ttft: to the first token. tpot: mean per token after it. itl: every gap between messages with tokens.
#: e2el: to the end. All but tpot and itl count from the scheduled time.
METRICS = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True, slots=True)
class Slo:
    """A request meets it when `metric` is at most `bound_s` seconds."""

    metric: str
    bound_s: float

    def met(self, record: RequestRecord) -> bool:
        """A failed request meets none; an answer too short to have the metric meets it."""
        if not record.completed:
            return False
        if self.metric == "itl":
            gap = record.largest_gap()
            return gap is None or gap.seconds <= self.bound_s
        value: float | None = getattr(record, self.metric)
        return value is None or value <= self.bound_s


def parse_slo(text: str) -> Slo:
    """From "ttft:200": the metric's name and milliseconds. Raises ConfigError."""
    metric, colon, bound = text.partition(":")
    try:
        milliseconds = float(bound)
    except ValueError:
        milliseconds = math.nan
    if metric not in METRICS or not colon or not 0 < milliseconds < math.inf:
        raise ConfigError("SLO", f"METRIC:MILLISECONDS with {', '.join(METRICS)}", text)
    return Slo(metric, milliseconds / 1000)


def parse_slos(texts: Iterable[str]) -> tuple[Slo, ...]:
    """Each text may hold several, with spaces between. Raises ConfigError, also for a metric bounded twice."""
    texts = " ".join(texts).split()
    slos = tuple(parse_slo(text) for text in texts)
    metrics = [slo.metric for slo in slos]
    for metric in metrics:
        if metrics.count(metric) > 1:
            raise ConfigError("SLO", f"one bound of {metric}", " ".join(texts))
    return slos


def meets_all(record: RequestRecord, slos: Iterable[Slo]) -> bool:
    return record.completed and all(slo.met(record) for slo in slos)
