"""When Ray calls a host dead, and what follows from that. Cluster files and docs repeat these values."""

from __future__ import annotations

from collections.abc import Mapping

#: What a head starts Ray with. Requests are protected by the router's own clocks, in milliseconds; so Ray need not
#: hurry, and a healthy host of a busy machine must not be killed for a slow answer.
HEALTH_CHECK: Mapping[str, int] = {
    "RAY_health_check_initial_delay_ms": 5000,
    "RAY_health_check_period_ms": 1000,
    "RAY_health_check_timeout_ms": 3000,
    "RAY_health_check_failure_threshold": 3,
}
#: So long a host is silent until Ray calls it dead, seconds.
HOST_SILENT_S = (
    HEALTH_CHECK["RAY_health_check_failure_threshold"]
    * (HEALTH_CHECK["RAY_health_check_period_ms"] + HEALTH_CHECK["RAY_health_check_timeout_ms"])
    / 1000
)
#: A host that reboots, or whose link is back, is part of Ray again so long after it was lost, seconds: it is called
#: dead, logged in to, Ray starts on it, and the worker loads its experts.
HOST_BACK_S = 60.0
#: A worker that is gone for longer is no longer waited for. Later than a host comes back by itself: otherwise its
#: experts would be copied each time, for nothing.
ABSENT_AFTER_S = 1.5 * HOST_BACK_S
