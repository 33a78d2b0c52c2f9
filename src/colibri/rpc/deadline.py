"""Read the deadline that a caller gave."""

from __future__ import annotations

import time

import grpc

from colibri.deadline import Clock, Deadline

#: What gRPC reports for a call without a deadline is a time some centuries away.
_NO_DEADLINE_S = 10 * 365 * 86400.0


def deadline_of(context: grpc.ServicerContext, clock: Clock = time.monotonic) -> Deadline:
    """Returns the deadline of a call being served; Deadline() if its caller gave none."""
    remaining = context.time_remaining()
    return Deadline.after(None if remaining is None or remaining > _NO_DEADLINE_S else remaining, clock)
