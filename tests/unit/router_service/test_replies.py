"""What a worker's answers mean."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.errors import Busy, Code, ColibriError, DeadlineExpired, ExpertNotLoaded, StaleEpoch
from colibri.router_service.executor import PartResult
from colibri.router_service.replies import REFUSALS, REPLY_KINDS, outcome
from colibri.v1 import expert_pb2
from colibri.wire.frame import Frame
from colibri.wire.header import Header

NEVER, SAME, OTHER = (
    expert_pb2.RETRY_ADVICE_NEVER,
    expert_pb2.RETRY_ADVICE_SAME_WORKER,
    expert_pb2.RETRY_ADVICE_OTHER_WORKER,
)


def refused(kind: int, retry: int = 0, after_us: int = 0, message: str = "why") -> ColibriError:
    header = Header(kind=kind, retry=retry, retry_after_us=after_us, error_message=message)
    result = outcome(Frame(header, memoryview(b"")), "w3")
    assert isinstance(result, ColibriError)
    return result


@pytest.mark.parametrize(
    ("kind", "cls", "code"),
    [
        (expert_pb2.FRAME_KIND_BUSY, Busy, Code.RESOURCE_EXHAUSTED),
        (expert_pb2.FRAME_KIND_STALE_EPOCH, StaleEpoch, Code.ABORTED),
        (expert_pb2.FRAME_KIND_EXPIRED, DeadlineExpired, Code.DEADLINE_EXCEEDED),
        (expert_pb2.FRAME_KIND_NOT_LOADED, ExpertNotLoaded, Code.FAILED_PRECONDITION),
        (expert_pb2.FRAME_KIND_ERROR, ColibriError, Code.INTERNAL),
    ],
)
def test_a_refusal_is_a_typed_error(kind: int, cls: type[ColibriError], code: Code) -> None:
    error = refused(kind)
    assert type(error) is cls
    assert (error.code, error.peer, error.message, error.retry_after_s) == (code, "w3", "w3: why", None)
    assert error.retryable is cls.retryable
    assert "FRAME_KIND" in refused(kind, message="").message


@pytest.mark.parametrize("kind", sorted(REFUSALS))
def test_the_worker_s_advice_decides(kind: int) -> None:
    assert [refused(kind, advice).retryable for advice in (NEVER, SAME, OTHER)] == [False, True, True]
    assert refused(kind, SAME, after_us=2500).retry_after_s == 0.0025


def test_every_reply_of_the_protocol_has_a_meaning() -> None:
    replies = {number for number in expert_pb2.FrameKind.values() if number >= expert_pb2.FRAME_KIND_RESULT}
    assert replies == REPLY_KINDS


@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_rows_of_a_result_are_aligned(offset: int) -> None:
    values = np.random.default_rng(offset).standard_normal((3, 5)).astype(np.float32)
    data = memoryview(bytes(offset) + values.tobytes())[offset:]
    status = np.array([0, 1, 0], dtype=np.uint32)
    header = Header(kind=expert_pb2.FRAME_KIND_RESULT, units=3, hidden=5, unit_status=status)
    result = outcome(Frame(header, data), "w3")
    assert isinstance(result, PartResult)
    assert np.array_equal(result.rows, values)
    assert result.rows.flags.aligned
    assert result.unit_status is status
