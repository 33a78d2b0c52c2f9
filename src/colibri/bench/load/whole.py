"""A whole measurement of a server: what is asked of it, for how long at most, and what warms it up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from colibri.bench.load.arrivals import MAX_REQUESTS, Arrivals, ClosedLoop, OpenLoop
from colibri.bench.load.result import RunLimits
from colibri.bench.load.runner import LoadRun
from colibri.bench.load.targets.target import Target
from colibri.bench.load.workload import LoadRequest, Workload
from colibri.client import ModelInfo

#: Seconds beyond the last request's own time.
SLACK_S = 60.0
_WARM_USERS = 4


@dataclass(frozen=True, slots=True)
class Load:
    """What a run asks, of whom.

    make_target: makes the target of a run, a new one for each.
    workload: the requests.
    arrivals: when they are sent.
    limits: bounds of the run.
    warmup: other requests than those of `workload`, sent before.
    info: the model of a colibri server. None: the server is another one.
    """

    make_target: Callable[[], Target]
    workload: Workload
    arrivals: Arrivals
    limits: RunLimits
    warmup: Workload
    info: ModelInfo | None

    def count(self) -> int | None:
        """Returns how many requests the run makes. None: unknown before it ends."""
        arrivals = self.arrivals
        return len(arrivals.offsets) if isinstance(arrivals, OpenLoop) else arrivals.requests

    def known(self) -> list[LoadRequest]:
        """Returns the requests that the run will make, as far as that is known before."""
        counts = [count for count in (self.count(), self.workload.distinct) if count is not None]
        return [self.workload.request(index) for index in range(min(counts, default=0))]

    def bound_s(self) -> float:
        """Returns seconds that are longer than the run can last."""
        arrivals, limits = self.arrivals, self.limits
        if isinstance(arrivals, OpenLoop):
            return arrivals.offsets[-1] + limits.drain_s + SLACK_S
        if arrivals.duration_s is not None:
            return arrivals.duration_s + limits.drain_s + SLACK_S
        rounds = -(-(arrivals.requests or MAX_REQUESTS) // arrivals.users)
        return rounds * (limits.request_timeout_s + arrivals.think_s + SLACK_S)


def warm_up(load: Load, count: int, log: Callable[[str], None]) -> None:
    """Sends `count` requests of `load.warmup`, and tells how many failed."""
    if not count:
        return
    users = min(count, _WARM_USERS, load.limits.in_flight)
    with LoadRun(load.make_target(), load.warmup, ClosedLoop(users, count), load.limits) as run:
        result = run.wait(count * load.limits.request_timeout_s + SLACK_S)
    failures = [record.failure for record in result.records if record.failure is not None]
    if failures:
        log(f"warm-up: {len(failures)} of {count} requests failed, the first: {failures[0].message}")
