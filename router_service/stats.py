"""Measure where a layer's time goes: cheap sums, which benchmarks and status pages read as snapshots."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import add as plus
from operator import attrgetter
from typing import Generic, TypeVar


@dataclass(slots=True)
class RouterTimes:
    """Sums over all layers computed, in seconds.

    exchange_s: the executor's whole share.
    differing_rows: rows for which fp32 logits would have chosen other experts, in any slot, than a narrower gate
        did.
    """

    layers: int = 0
    rows: int = 0
    failed_rows: int = 0
    gate_s: float = 0.0
    plan_s: float = 0.0
    exchange_s: float = 0.0
    merge_s: float = 0.0
    differing_rows: int = 0


@dataclass(slots=True)
class ExchangeTimes:
    """Sums over an executor's messages, in seconds and bytes.

    write_s: from copying the first row to handing the last message to its link.
    wait_s: from there to the last answer.
    worker_queue_s, worker_compute_s: as the workers reported.
    late_replies: answers that nobody waited for any more.
    """

    exchanges: int = 0
    messages: int = 0
    failed_messages: int = 0
    late_replies: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    write_s: float = 0.0
    wait_s: float = 0.0
    worker_queue_s: float = 0.0
    worker_compute_s: float = 0.0


@dataclass(slots=True)
class RoutingEvents:
    """Counts of what went wrong and what was done about it; see RoutingStats."""

    failovers: int = 0
    timeouts: int = 0
    hedges: int = 0
    hedges_won: int = 0
    bad_replies: int = 0
    refusals: int = 0
    ejections: int = 0
    waits_for_holder: int = 0


@dataclass(frozen=True, slots=True)
class RoutingStats:
    """Sums since the start, as in colibri.v1.RoutingInfo.

    failovers: messages sent again because a worker was lost, refused, was late or answered nonsense.
    timeouts: how many of these had no answer within the adaptive deadline.
    balance: largest over mean of the rows sent per live worker; 0 before any.
    """

    exchanges: int = 0
    messages: int = 0
    failovers: int = 0
    timeouts: int = 0
    hedges: int = 0
    hedges_won: int = 0
    late_replies: int = 0
    bad_replies: int = 0
    refusals: int = 0
    ejections: int = 0
    waits_for_holder: int = 0
    balance: float = 0.0


class HealthState(enum.Enum):
    """The state of a worker as the router sees it.

    SUSPECT: used, but watched.
    EJECTED: not used while another holder lives.
    PROBING: still not used, but it answers probes.
    LOST: no connection.
    UNKNOWN: none was tried yet.
    """

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    EJECTED = "ejected"
    PROBING = "probing"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class WorkerHealth:
    """How the router sees one worker.

    incarnation: 0 if it is not alive.
    link: "grpc", "shared-memory", or empty without a connection.
    latencies: of its last answers, seconds; 0 before any.
    rows_sent: since the start.
    reason: for its state; empty while it is healthy.
    """

    state: HealthState
    incarnation: int
    link: str
    latency_p50_s: float
    latency_p99_s: float
    rows_sent: int
    reason: str = ""


Times = TypeVar("Times", RouterTimes, ExchangeTimes, RoutingEvents)


class Recorder(Generic[Times]):
    """Adds up `Times` from several threads."""

    def __init__(self, zero: Times) -> None:
        self._lock = threading.Lock()
        self._kind: Callable[..., Times] = type(zero)
        self._values = attrgetter(*(field.name for field in fields(zero)))
        self._sum: tuple[float, ...] = self._values(zero)

    def add(self, times: Times) -> None:
        with self._lock:
            self._sum = tuple(map(plus, self._sum, self._values(times)))

    def snapshot(self) -> Times:
        return self._kind(*self._sum)


def minus(a: Times, b: Times) -> Times:
    """Subtracts field by field: what happened between the snapshots `b` and `a`."""
    change: Times = type(a)(*(getattr(a, f.name) - getattr(b, f.name) for f in fields(a)))
    return change
