"""Whether a run measured the server or its own generator."""

from __future__ import annotations

from dataclasses import dataclass

from colibri.bench.load.distribution import Distribution, distribution
from colibri.bench.load.record import BOUND_EXCEEDED
from colibri.bench.load.result import RunResult
from colibri.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ValidityBounds:
    """lag_p99_s: of sends behind their schedule, and of the event loop behind its timers (then arrival times
    are late, too). loop_cpu_share: of one core, used by the loop's thread."""

    lag_p99_s: float = 0.025
    loop_cpu_share: float = 0.85

    def __post_init__(self) -> None:
        if not 0 < self.lag_p99_s < 1e4:
            raise ConfigError("send lag", "above 0 and below 1e4 seconds", self.lag_p99_s)


@dataclass(frozen=True, slots=True)
class Validity:
    """reasons: why the run is invalid; empty: it is valid. Latencies of an invalid run may be the
    generator's own. CPU shares are of one core."""

    reasons: tuple[str, ...]
    send_lag: Distribution | None
    loop_lateness: Distribution | None
    loop_cpu_share: float
    process_cpu_share: float

    @property
    def valid(self) -> bool:
        return not self.reasons


def judge_run(result: RunResult, bounds: ValidityBounds | None = None) -> Validity:
    bounds = bounds or ValidityBounds()
    lag = distribution(
        max(0.0, record.sent - record.scheduled) for record in result.records if record.sent is not None
    )
    late = distribution(result.loop_lateness)
    duration = max(result.duration_s, 1e-9)
    cpu = result.loop_cpu_s / duration
    reasons = []
    unsent = sum(
        record.failure is not None and record.failure.kind == BOUND_EXCEEDED for record in result.records
    )
    if unsent:
        reasons.append(
            f"{unsent} requests were not sent: the declared bound of {result.limits.in_flight} in flight was "
            "reached"
        )
    for what, measured in (("sends", lag), ("the event loop", late)):
        if measured is not None and measured.percentiles[99.0] > bounds.lag_p99_s:
            reasons.append(
                f"{what} ran late: p99 {measured.percentiles[99.0] * 1e3:.1f} ms, "
                f"allowed {bounds.lag_p99_s * 1e3:g} ms"
            )
    if cpu > bounds.loop_cpu_share:
        reasons.append(
            f"the generator used {cpu:.0%} of a core, allowed {bounds.loop_cpu_share:.0%}: it was saturated"
        )
    if not result.records:
        reasons.append("no request was made")
    return Validity(tuple(reasons), lag, late, cpu, result.process_cpu_s / duration)
