"""What a router knows of one incarnation of a worker."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from colibri.errors import ColibriError
from colibri.placement import WorkerEndpoint
from colibri.router_service.connection import Connection
from colibri.router_service.health import Health
from colibri.router_service.hedge import QueueTrend
from colibri.router_service.latency import LatencyModel
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.stats import HealthState, WorkerHealth

#: After a failed attempt to connect, or a connection that did not last, the next attempt waits: at first, at most,
#: seconds.
_RETRY_S, _LONGEST_RETRY_S = 0.05, 1.0
_LASTING_S = 1.0


class Peer:
    """`connection`, `failure`, `tries` and `health` change under the fleet's lock; any thread may read them.

    failure: why there is no connection.
    tries: attempts to connect that have ended.
    failures: how many of them failed in a row.
    retry_s: wait before the next attempt, seconds.
    busy_until: until when a recent BUSY keeps hedges away.
    keeper: the thread that connects and probes it, if any.
    over: set once nobody needs this incarnation.
    """

    __slots__ = (
        "_connected_at",
        "_judged_at",
        "_rows_before",
        "busy_until",
        "connection",
        "endpoint",
        "failure",
        "failures",
        "health",
        "keeper",
        "latency",
        "over",
        "queue",
        "retry_s",
        "tries",
    )

    def __init__(
        self, endpoint: WorkerEndpoint, policy: FailoverPolicy, expected: Mapping[int, float] | None = None
    ) -> None:
        """expected: as LatencyModel takes it."""
        self.endpoint = endpoint
        self.connection: Connection | None = None
        self.failure: ColibriError | None = None
        self.tries = 0
        self.failures = 0
        self.retry_s = 0.0
        self.health = Health()
        self.latency = LatencyModel(policy, expected)
        self.queue = QueueTrend()
        self.busy_until = 0.0
        self.keeper: threading.Thread | None = None
        self.over = threading.Event()
        self._judged_at = [0] * len(self.latency.windows)
        self._rows_before = 0
        self._connected_at = 0.0

    @property
    def name(self) -> str:
        return self.endpoint.name

    @property
    def rows_sent(self) -> int:
        connection = self.connection
        return self._rows_before + (0 if connection is None else connection.rows_sent)

    def install(self, connection: Connection, now: float) -> None:
        self.connection = connection
        self.failure = None
        self._connected_at = now

    def lose(self, error: ColibriError, now: float) -> None:
        """Notes that the connection ended, or could not be made."""
        connection, self.connection = self.connection, None
        self.failure = error
        if connection is not None:
            self._rows_before += connection.rows_sent
            if now - self._connected_at >= _LASTING_S:
                self.failures, self.retry_s = 0, 0.0
                return
        self.failures += 1
        self.retry_s = min(max(2 * self.retry_s, _RETRY_S), _LONGEST_RETRY_S)

    def fresh_sizes(self, least: int) -> list[tuple[int, list[float]]]:
        """Returns (size, answers) for each message size with at least `least` answers since the last call that
        returned it.
        """
        found = []
        for size, window in enumerate(self.latency.windows):
            fresh = window.exact_count - self._judged_at[size]
            if fresh >= least:
                found.append((size, window.last_exact(fresh)))
                self._judged_at[size] = window.exact_count
        return found

    def median(self, size: int) -> float:
        """Returns the median of the answers whose time is known, seconds; 0 if there are too few."""
        return self.latency.windows[size].median()

    def smallest_median(self) -> float:
        """Returns the median for the smallest message size that was measured, seconds; 0 if none was."""
        return next((value for window in self.latency.windows if (value := window.median())), 0.0)

    def forget_slowness(self) -> None:
        """Forgets what was measured while it was slow: it answers well again."""
        self.latency.forget_exact()
        self._judged_at = [window.exact_count for window in self.latency.windows]

    def report(self) -> WorkerHealth:
        connection = self.connection
        state, reason = self.condition()
        return WorkerHealth(
            state,
            self.endpoint.incarnation,
            "" if connection is None else connection.link_kind.value,
            self.latency.percentile(0.5),
            self.latency.percentile(0.99),
            self.rows_sent,
            reason,
        )

    def condition(self) -> tuple[HealthState, str]:
        """Returns state and reason; the reason is empty while it is healthy."""
        health, failure = self.health, self.failure
        if self.connection is None and not health.out:
            if failure is None:
                return HealthState.UNKNOWN, "no connection was tried yet"
            return HealthState.LOST, failure.message
        if health.state is HealthState.HEALTHY:
            return health.state, ""
        return health.state, health.reason if failure is None else f"{health.reason}; {failure.message}"
