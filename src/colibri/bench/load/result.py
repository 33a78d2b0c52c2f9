"""The bounds of a run, its progress, and its result."""

from __future__ import annotations

from dataclasses import dataclass

from colibri.bench.load.arrivals import Arrivals
from colibri.bench.load.record import RequestRecord
from colibri.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RunLimits:
    """in_flight: most requests at once. request_timeout_s: for one answer, from when it is sent. drain_s: for answers
        that still run
    after the last request was sent.
    """

    in_flight: int = 128
    request_timeout_s: float = 120.0
    drain_s: float = 120.0
    connect_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.in_flight < 1:
            raise ConfigError("in flight", "at least 1", self.in_flight)
        for name in ("request_timeout_s", "drain_s", "connect_timeout_s"):
            if not 0 <= getattr(self, name) < 1e7:
                raise ConfigError(name, "0 to 1e7 seconds", getattr(self, name))


@dataclass(frozen=True, slots=True)
class Progress:
    """failed: also what was not sent for the bound, but not what the run stopped itself. tokens: arrived so
    far, over all requests."""

    elapsed_s: float = 0.0
    sent: int = 0
    in_flight: int = 0
    completed: int = 0
    failed: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class RunResult:
    """records: in the order in which they ended. started, ended: absolute, on the records' clock.

    loop_lateness: seconds by which the event loop woke late, once per 50 ms. loop_cpu_s: of the loop's
    thread; process_cpu_s: of the whole process meanwhile. stopped: the run was told to end.
    """

    arrivals: Arrivals
    limits: RunLimits
    records: tuple[RequestRecord, ...]
    started: float
    ended: float
    loop_lateness: tuple[float, ...]
    loop_cpu_s: float
    process_cpu_s: float
    peak_in_flight: int
    stopped: bool

    @property
    def duration_s(self) -> float:
        return self.ended - self.started
