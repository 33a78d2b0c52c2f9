"""Read a worker's answer: a result, or a typed error with its retry advice."""

from __future__ import annotations

import numpy as np

from colibri.errors import Busy, ColibriError, DeadlineExpired, ExpertNotLoaded, StaleEpoch
from colibri.router_service.executor import PartResult
from colibri.v1 import expert_pb2
from colibri.wire.frame import Frame
from colibri.wire.header import Header

#: Refusals by their kind; RESULT apart, these are all kinds that a worker sends.
REFUSALS: dict[int, type[ColibriError]] = {
    expert_pb2.FRAME_KIND_BUSY: Busy,
    expert_pb2.FRAME_KIND_STALE_EPOCH: StaleEpoch,
    expert_pb2.FRAME_KIND_EXPIRED: DeadlineExpired,
    expert_pb2.FRAME_KIND_NOT_LOADED: ExpertNotLoaded,
    expert_pb2.FRAME_KIND_ERROR: ColibriError,
}
REPLY_KINDS = frozenset((expert_pb2.FRAME_KIND_RESULT, *REFUSALS))


def outcome(reply: Frame, peer: str) -> PartResult | ColibriError:
    """Returns the result or the error that a validated answer holds."""
    header = reply.header
    if header.kind != expert_pb2.FRAME_KIND_RESULT:
        return refusal(header, peer)
    rows = np.frombuffer(reply.tensor, dtype=np.float32).reshape(header.units, header.hidden)
    # A view into the frame starts anywhere; kernels need whole floats.
    return PartResult(rows if rows.flags.aligned else rows.copy(), header.unit_status)


def refusal(header: Header, peer: str) -> ColibriError:
    """Returns the typed error of an answer other than RESULT. The worker's advice decides whether a retry can help."""
    cls = REFUSALS[header.kind]
    text = header.error_message or expert_pb2.FrameKind.Name(expert_pb2.FrameKind.ValueType(header.kind))
    after = header.retry_after_us * 1e-6 if header.retry_after_us else None
    error = cls(f"{peer}: {text}", peer=peer, retry_after_s=after)
    if header.retry != expert_pb2.RETRY_ADVICE_UNSPECIFIED:
        error.retryable = header.retry != expert_pb2.RETRY_ADVICE_NEVER
    return error
