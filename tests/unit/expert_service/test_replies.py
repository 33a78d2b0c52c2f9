from __future__ import annotations

import pytest

from colibri import errors
from colibri.errors import ColibriError, InvalidInput
from colibri.expert_service.replies import error_header, result_header
from colibri.v1 import expert_pb2 as pb
from colibri.wire.header import Header
from tests.support.frames import u32

REQUEST = Header(
    kind=pb.FRAME_KIND_FORWARD, correlation_id=9, attempt=2, epoch=5, layer=3, rows=2, hidden=8, units=3,
    priority=4, trace_id=bytes(range(16)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("error", "kind", "advice"),
    [
        (errors.Busy("full"), pb.FRAME_KIND_BUSY, pb.RETRY_ADVICE_SAME_WORKER),
        (errors.ShuttingDown("bye"), pb.FRAME_KIND_BUSY, pb.RETRY_ADVICE_OTHER_WORKER),
        (errors.StaleEpoch("old"), pb.FRAME_KIND_STALE_EPOCH, pb.RETRY_ADVICE_SAME_WORKER),
        (errors.DeadlineExpired("late"), pb.FRAME_KIND_EXPIRED, pb.RETRY_ADVICE_NEVER),
        (errors.ExpertNotLoaded("no"), pb.FRAME_KIND_NOT_LOADED, pb.RETRY_ADVICE_OTHER_WORKER),
        (errors.FrameError("crc"), pb.FRAME_KIND_ERROR, pb.RETRY_ADVICE_SAME_WORKER),
        (InvalidInput("rows", "1", 2), pb.FRAME_KIND_ERROR, pb.RETRY_ADVICE_NEVER),
        (errors.WorkerLost("gpu"), pb.FRAME_KIND_ERROR, pb.RETRY_ADVICE_OTHER_WORKER),
        (ColibriError("bug"), pb.FRAME_KIND_ERROR, pb.RETRY_ADVICE_NEVER),
    ],
)
def test_errors(error: ColibriError, kind: int, advice: int) -> None:
    header = error_header(REQUEST, error, incarnation=7)
    assert (header.kind, header.retry, header.error_message) == (kind, advice, error.message)
    assert (header.correlation_id, header.attempt, header.epoch, header.incarnation) == (9, 2, 5, 7)
    assert header.trace_id == REQUEST.trace_id
    assert header.last_chunk
    assert (header.units, header.total_bytes, header.retry_after_us) == (0, 0, 0)


def test_retry_after_and_long_messages() -> None:
    header = error_header(REQUEST, errors.Busy("x" * 5000, retry_after_s=0.0015), incarnation=1)
    assert header.retry_after_us == 1500
    assert len(header.error_message) == 1000


def test_a_trace_id_of_another_length_is_not_echoed() -> None:
    assert error_header(Header(trace_id=b"abc"), ColibriError("x"), 1).trace_id == b""


def test_results() -> None:
    header = result_header(REQUEST, 7, u32(0, 0, 0), queue_us=20, compute_us=30)
    assert header.kind == pb.FRAME_KIND_RESULT
    assert (header.correlation_id, header.attempt, header.epoch, header.incarnation) == (9, 2, 5, 7)
    assert (header.layer, header.rows, header.hidden, header.units) == (3, 2, 8, 3)
    assert (header.queue_us, header.compute_us) == (20, 30)
    assert header.unit_status.size == 0
    assert result_header(REQUEST, 7, u32(0, 1, 0), 0, 0).unit_status.tolist() == [0, 1, 0]
