"""Probe a worker that is out of use: send a row of zeros to one expert that it holds."""

from __future__ import annotations

import numpy as np

from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError
from colibri.router_service.connection import Connection
from colibri.v1 import expert_pb2
from colibri.wire.header import Header
from colibri.wire.limits import FrameLimits

#: How long an answer is waited for: a worker that was frozen answers the probe that was sent meanwhile, at once.
PROBE_S = 2.0
_ZERO = np.zeros(1, dtype=np.uint32)
_ONE = np.ones(1, dtype=np.uint32)
_WEIGHT = np.ones(1, dtype=np.float32)


def probe(
    connection: Connection,
    limits: FrameLimits,
    correlation_id: int,
    layer: int,
    expert: int,
    epoch: int,
    timeout_s: float,
    clock: Clock,
) -> float | None:
    """Returns the seconds until a right answer came; None after `timeout_s` seconds, a refusal or a wrong answer."""
    header = Header(
        kind=expert_pb2.FRAME_KIND_FORWARD,
        correlation_id=correlation_id,
        attempt=0,
        epoch=epoch,
        incarnation=connection.endpoint.incarnation,
        remaining_us=int(timeout_s * 1e6),
        layer=layer,
        compute_mode=limits.mode_number,
        wire_dtype=limits.dtype_number,
        rows=1,
        hidden=limits.hidden,
        units=1,
        group_expert=np.array([expert], dtype=np.uint32),
        group_count=_ONE,
        entry_row=_ZERO,
        entry_slot=_ZERO,
        entry_unit=_ZERO,
        entry_weight=_WEIGHT,
        unit_slots=_ONE,
    )
    begin = clock()
    try:
        message = connection.send(header, bytes(limits.row_bytes), Deadline(begin + timeout_s), timeout_s)
    except ColibriError:
        return None
    if not connection.wait(message, begin + timeout_s):
        connection.abandon(message)
        return None
    reply = message.reply
    if reply is None or reply.header.kind != expert_pb2.FRAME_KIND_RESULT:
        return None
    return message.done_at - message.sent_at
