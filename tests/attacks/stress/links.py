"""A worker's end of a link, in this process: it echoes."""

from __future__ import annotations

import queue
from collections.abc import Sequence

import numpy as np

from colibri.errors import DeadlineExpired, WorkerLost
from colibri.placement import WorkerEndpoint
from colibri.transport.link import LinkKind
from colibri.v1 import expert_pb2
from colibri.wire.chunks import message_frames
from colibri.wire.frame import read_frame
from colibri.wire.header import Header
from colibri.wire.limits import FrameLimits

_ONE = np.ones(1, np.uint32)
_ZERO = np.zeros(1, np.uint32)


def forward(limits: FrameLimits, correlation_id: int) -> Header:
    """One row for expert 0 of layer 0."""
    return Header(
        kind=expert_pb2.FRAME_KIND_FORWARD,
        correlation_id=correlation_id,
        incarnation=1,
        epoch=1,
        compute_mode=limits.mode_number,
        wire_dtype=limits.dtype_number,
        rows=1,
        hidden=limits.hidden,
        units=1,
        group_expert=_ZERO,
        group_count=_ONE,
        entry_row=_ZERO,
        entry_slot=_ZERO,
        entry_unit=_ZERO,
        entry_weight=np.ones(1, np.float32),
        unit_slots=_ONE,
    )


class EchoLink:
    """Answers every request with a row of zeros, at once."""

    kind = LinkKind.GRPC

    def __init__(self, endpoint: WorkerEndpoint) -> None:
        self.peer = endpoint.name
        self.lost: str | None = None
        self._incarnation = endpoint.incarnation
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def send(self, parts: Sequence[bytes | memoryview], timeout_s: float = 1.0) -> None:
        if self.lost is not None:
            raise WorkerLost(self.lost, peer=self.peer)
        asked = read_frame(b"".join(parts)).header
        if asked.kind != expert_pb2.FRAME_KIND_FORWARD:
            return
        answer = Header(
            kind=expert_pb2.FRAME_KIND_RESULT,
            correlation_id=asked.correlation_id,
            attempt=asked.attempt,
            incarnation=self._incarnation,
            hidden=asked.hidden,
            units=asked.units,
        )
        for frame in message_frames(answer, bytes(4 * asked.hidden * asked.units)):
            self._answers.put(b"".join(frame))

    def receive(self, timeout_s: float) -> memoryview:
        try:
            return memoryview(self._answers.get(timeout=min(timeout_s, 0.01)))
        except queue.Empty:
            if self.lost is not None:
                raise WorkerLost(self.lost, peer=self.peer) from None
            raise DeadlineExpired("nothing", peer=self.peer) from None

    def close(self) -> None:
        self.lost = "closed"
