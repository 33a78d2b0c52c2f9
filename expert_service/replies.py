"""Make replies to requests: headers, and the kind and advice that an error becomes. Pure functions."""

from __future__ import annotations

import numpy as np

from colibri.errors import (
    Busy,
    ColibriError,
    DeadlineExpired,
    ExpertNotLoaded,
    FrameError,
    ShuttingDown,
    StaleEpoch,
)
from colibri.kernels.api import U32
from colibri.security.public_text import public_text
from colibri.v1 import expert_pb2
from colibri.wire.header import EMPTY_U32, Header
from colibri.wire.limits import MAX_ERROR_CHARS

#: First match wins. An error of no class here is ERROR, at a replica if a retry can help, else never.
_KINDS: tuple[tuple[type[ColibriError], int, int], ...] = (
    (Busy, expert_pb2.FRAME_KIND_BUSY, expert_pb2.RETRY_ADVICE_SAME_WORKER),
    (ShuttingDown, expert_pb2.FRAME_KIND_BUSY, expert_pb2.RETRY_ADVICE_OTHER_WORKER),
    (StaleEpoch, expert_pb2.FRAME_KIND_STALE_EPOCH, expert_pb2.RETRY_ADVICE_SAME_WORKER),
    (DeadlineExpired, expert_pb2.FRAME_KIND_EXPIRED, expert_pb2.RETRY_ADVICE_NEVER),
    (ExpertNotLoaded, expert_pb2.FRAME_KIND_NOT_LOADED, expert_pb2.RETRY_ADVICE_OTHER_WORKER),
    (FrameError, expert_pb2.FRAME_KIND_ERROR, expert_pb2.RETRY_ADVICE_SAME_WORKER),
)


def error_header(request: Header, error: ColibriError, incarnation: int) -> Header:
    """Returns the header that refuses a request."""
    kind, advice = next(
        ((kind, advice) for cls, kind, advice in _KINDS if isinstance(error, cls)),
        (
            expert_pb2.FRAME_KIND_ERROR,
            expert_pb2.RETRY_ADVICE_OTHER_WORKER if error.retryable else expert_pb2.RETRY_ADVICE_NEVER,
        ),
    )
    header = _header(request, kind, incarnation)
    header.retry = advice
    header.retry_after_us = max(0, round((error.retry_after_s or 0.0) * 1e6))
    header.error_message = public_text(error.message)[:MAX_ERROR_CHARS]
    return header


def result_header(request: Header, incarnation: int, status: U32, queue_us: int, compute_us: int) -> Header:
    """Returns the header of a result, whose tensor is fp32 [units, hidden]. status: u32 [units]."""
    header = _header(request, expert_pb2.FRAME_KIND_RESULT, incarnation)
    header.layer = request.layer
    header.rows = request.rows
    header.hidden = request.hidden
    header.units = request.units
    header.unit_status = status if np.count_nonzero(status) else EMPTY_U32
    header.queue_us = queue_us
    header.compute_us = compute_us
    return header


def _header(request: Header, kind: int, incarnation: int) -> Header:
    return Header(
        kind=kind,
        correlation_id=request.correlation_id,
        attempt=request.attempt,
        last_chunk=True,
        epoch=request.epoch,
        incarnation=incarnation,
        trace_id=request.trace_id if len(request.trace_id) == 16 else b"",
    )
