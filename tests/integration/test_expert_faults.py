"""Requests that a worker refuses, drops or cannot read, and what that costs the others: nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.errors import WorkerLost
from colibri.expert_service.config import WorkerConfig
from colibri.kernels.api import F32, U32, Array, UnitBatch
from colibri.v1 import expert_pb2
from colibri.wire.chunks import message_frames
from colibri.wire.frame import Frame, read_frame, write_frame
from colibri.wire.header import Header
from tests.support.frames import f32, u32
from tests.support.growth import assert_flat
from tests.support.worker_client import (
    WAIT_S,
    Gate,
    WorkerClient,
    eventually,
    limits_of,
    tensor_of,
    worker_inside,
    worker_process,
)

NEVER, SAME, OTHER = 1, 2, 3
KIND = expert_pb2.FrameKind


@pytest.fixture
def config(tiny_mixtral: Path, tmp_path: Path) -> WorkerConfig:
    return WorkerConfig(
        tiny_mixtral,
        "w0",
        f"unix:{tmp_path}/w.sock",
        "fp32",
        incarnation=7,
        backend="reference",
        max_queued=3,
        max_streams=4,
    )


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate.closed()
    yield gate
    gate.open.release(1000)


@pytest.fixture
def client(config: WorkerConfig, gate: Gate) -> Iterator[WorkerClient]:
    """Of a worker that computes nothing until the gate lets it."""
    with worker_inside(config, gate.run) as client:
        yield client
        gate.open.release(1000)


@pytest.fixture
def quick(config: WorkerConfig) -> Iterator[WorkerClient]:
    """Of a worker that answers zeros at once."""

    def zeros(layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        units = len(batch.unit_slots)
        return np.zeros((units, x.shape[1]), np.float32), np.zeros(units, np.uint32)

    with worker_inside(config, zeros) as client:
        yield client


class Second:
    """Another stream of a client whose first one computes: what it sends is looked at, and waits, at once."""

    def __init__(self, client: WorkerClient, gate: Gate) -> None:
        self._client = client
        self._gate = gate
        self.link = client.open_link()
        client.send(client.request(1, rows=1))
        gate.wait_entered()

    def send(self, header: Header) -> None:
        for parts in message_frames(header, tensor_of(header, None, self._client.limits)):
            self.link.send(parts)

    def cancel(self, number: int, attempt: int = 0) -> None:
        header = Header(kind=KIND.FRAME_KIND_CANCEL, correlation_id=number, attempt=attempt, last_chunk=True)
        self.link.send(write_frame(header))

    def reply(self) -> Header:
        return self._client.reply(self.link).header

    def replies(self, count: int) -> dict[int, Header]:
        found = {}
        for _ in range(count):
            header = self.reply()
            assert header.correlation_id not in found
            found[header.correlation_id] = header
        return found

    def wait_queued(self, count: int) -> None:
        eventually(lambda: self._client.status().queued == count)

    def let_go(self) -> None:
        self._gate.open.release(100)
        assert self._client.reply().header.kind == KIND.FRAME_KIND_RESULT


@pytest.fixture
def second(client: WorkerClient, gate: Gate) -> Second:
    return Second(client, gate)


def test_a_full_queue_is_busy(client: WorkerClient, second: Second) -> None:
    for number in range(2, 6):
        second.send(client.request(number))
    refusal = second.reply()
    assert (refusal.correlation_id, refusal.kind) == (5, KIND.FRAME_KIND_BUSY)
    assert refusal.error_message == "the queue is full: 3 requests wait"
    assert (refusal.retry, refusal.retry_after_us) == (SAME, 5000)
    assert client.status().queued == 3
    second.let_go()
    found = second.replies(3)
    assert {header.kind for header in found.values()} == {KIND.FRAME_KIND_RESULT}
    status = client.status()
    assert (status.requests_done, status.requests_refused, status.queued) == (4, 1, 0)


def test_expired_work_is_dropped_before_compute(client: WorkerClient, gate: Gate, second: Second) -> None:
    second.send(client.request(2, remaining_us=1000))
    second.send(client.request(3, remaining_us=60_000_000))
    second.wait_queued(2)
    time.sleep(0.01)
    second.let_go()
    found = second.replies(2)
    assert (found[2].kind, found[2].retry) == (KIND.FRAME_KIND_EXPIRED, NEVER)
    assert found[2].error_message.startswith("w0: the time ran out 0.")
    assert found[3].kind == KIND.FRAME_KIND_RESULT
    assert gate.order == [1, 1]
    assert (client.status().requests_expired, client.status().requests_refused) == (1, 0)


def test_cancelled_work_is_dropped_and_never_answered(
    client: WorkerClient, gate: Gate, second: Second
) -> None:
    for number in (2, 3, 4):
        second.send(client.request(number, rows=number))
    second.wait_queued(3)
    for number, attempt in ((2, 0), (3, 1), (99, 0), (4, 0)):
        second.cancel(number, attempt)
    second.wait_queued(1)
    assert client.status().requests_cancelled == 2
    # Their places are free again.
    second.send(client.request(5, rows=5))
    second.wait_queued(2)
    second.let_go()
    assert set(second.replies(2)) == {3, 5}
    second.cancel(3)
    second.send(client.request(6, rows=6))
    assert set(second.replies(1)) == {6}
    assert gate.order == [1, 3, 5, 6]
    assert client.status().requests_cancelled == 2


def test_a_message_that_still_arrives_can_be_cancelled(quick: WorkerClient, config: WorkerConfig) -> None:
    request = quick.request(1, rows=1000)
    tensor = tensor_of(request, None, quick.limits)
    first, *others = message_frames(request, tensor, chunk_bytes=4096)
    quick.link.send(first)
    eventually(lambda: quick.status().queued == 1)
    quick.link.send(write_frame(Header(kind=KIND.FRAME_KIND_CANCEL, correlation_id=1, last_chunk=True)))
    for parts in others:
        quick.link.send(parts)
    assert quick.call(quick.request(2)).header.correlation_id == 2
    assert (quick.status().queued, quick.status().requests_cancelled) == (0, 1)
    assert quick.call(quick.request(1)).header.kind == KIND.FRAME_KIND_RESULT


def test_higher_priority_runs_first_then_the_older_across_streams(config: WorkerConfig, gate: Gate) -> None:
    with worker_inside(replace(config, max_queued=10), gate.run) as client:
        second, third = Second(client, gate), client.open_link()
        second.send(client.request(2, rows=2))
        second.wait_queued(1)
        for rows, priority in ((3, 5), (4, 9), (5, 0)):
            header = client.request(rows, rows=rows, priority=priority)
            for parts in message_frames(header, tensor_of(header, None, client.limits)):
                third.send(parts)
        second.wait_queued(4)
        second.send(client.request(6, rows=6, priority=5))
        second.wait_queued(5)
        for _ in range(5):
            time.sleep(0.3)  # until whoever sent a reply waits for its turn again
            gate.open.release()
            gate.wait_entered()
        gate.open.release()
        assert client.reply().header.correlation_id == 1
        assert [client.reply(third).header.correlation_id for _ in range(3)] == [4, 3, 5]
        assert [second.reply().correlation_id for _ in range(2)] == [6, 2]  # 6 overtakes 2
        # Among equals the older runs first, unless its stream still sends a reply when the turn is free.
        assert gate.order[:2] == [1, 4]
        assert sorted(gate.order[2:4]) == [3, 6]
        assert sorted(gate.order[4:]) == [2, 5]


def test_duplicates_in_flight_are_refused(client: WorkerClient, second: Second) -> None:
    second.send(client.request(2))
    second.send(client.request(2))
    refusal = second.reply()
    assert (refusal.correlation_id, refusal.kind, refusal.retry) == (2, KIND.FRAME_KIND_ERROR, NEVER)
    assert (
        refusal.error_message == "correlation_id: expected an id and attempt that are not in flight, got 2/0"
    )
    second.send(client.request(2, attempt=1))
    second.wait_queued(2)
    second.let_go()
    assert sorted((header.attempt, header.kind) for header in (second.reply(), second.reply())) == [
        (0, KIND.FRAME_KIND_RESULT),
        (1, KIND.FRAME_KIND_RESULT),
    ]
    second.send(client.request(2))
    assert second.reply().kind == KIND.FRAME_KIND_RESULT


@pytest.mark.parametrize(
    ("change", "kind", "retry", "message"),
    [
        ({"incarnation": 6}, KIND.FRAME_KIND_STALE_EPOCH, SAME, "incarnation: expected 7, got 6"),
        ({"kind": 0}, KIND.FRAME_KIND_ERROR, NEVER, "kind: expected FORWARD or CANCEL, got 0"),
        ({"kind": 16}, KIND.FRAME_KIND_ERROR, NEVER, "kind: expected FORWARD or CANCEL, got 16"),
        ({"kind": 12345}, KIND.FRAME_KIND_ERROR, NEVER, "kind: expected FORWARD or CANCEL, got 12345"),
        ({"layer": 3}, KIND.FRAME_KIND_ERROR, NEVER, "layer: expected 0 to 2, got 3"),
        ({"compute_mode": 2}, KIND.FRAME_KIND_ERROR, NEVER, "compute_mode: expected 1 (fp32), got 2"),
        ({"wire_dtype": 2}, KIND.FRAME_KIND_ERROR, NEVER, "wire_dtype: expected 1 (fp32), got 2"),
        ({"hidden": 1 << 31}, KIND.FRAME_KIND_ERROR, NEVER, "hidden: expected 64, got 2147483648"),
        ({"rows": 1025}, KIND.FRAME_KIND_ERROR, NEVER, "rows: expected 1 to 1024, got 1025"),
        ({"rows": 2}, KIND.FRAME_KIND_ERROR, NEVER, "total_bytes: expected 512 (2 rows of 64), got 256"),
        ({"entry_row": u32(0, 7)}, KIND.FRAME_KIND_ERROR, NEVER, "entry_row: expected 0 to 0, got 7"),
        ({"group_expert": u32(0, 8)}, KIND.FRAME_KIND_ERROR, NEVER, "group_expert: expected 0 to 7, got 8"),
        (
            {"entry_weight": f32(np.inf, 0)},
            KIND.FRAME_KIND_ERROR,
            NEVER,
            "entry_weight: expected finite weights, got NaN or Inf",
        ),
    ],
)
def test_a_wrong_request_is_answered_precisely(
    quick: WorkerClient, change: dict[str, Any], kind: int, retry: int, message: str
) -> None:
    request = quick.request(5)
    tensor = tensor_of(request, None, quick.limits)
    for name, value in change.items():
        setattr(request, name, value)
    for parts in message_frames(request, tensor):
        quick.link.send(parts)
    header = quick.reply().header
    assert (header.correlation_id, header.kind, header.retry, header.error_message) == (
        5,
        kind,
        retry,
        message,
    )
    assert quick.call(quick.request(6)).header.kind == KIND.FRAME_KIND_RESULT
    assert (quick.status().requests_refused, quick.status().queued) == (1, 0)


def test_a_lying_size_reserves_nothing(quick: WorkerClient) -> None:
    request = quick.request(1, rows=1024)
    (parts,) = message_frames(request, tensor_of(request, None, quick.limits))
    frame = read_frame(b"".join(parts))
    frame.header.total_bytes = 1 << 62
    frame.header.last_chunk = False
    quick.link.send(write_frame(frame.header, frame.tensor))
    header = quick.reply().header
    assert header.error_message == f"total_bytes: expected 262144 (1024 rows of 64), got {1 << 62}"
    for index in range(1, 4):
        piece = Header(correlation_id=1, chunk_index=index, last_chunk=index == 3)
        quick.link.send(write_frame(piece, b"x" * 100))
    # The pieces of a refused message are dropped in silence.
    assert quick.call(quick.request(2)).header.correlation_id == 2
    assert quick.status().requests_refused == 1


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([(1, True, 10)], "chunk_index: expected 0, the first chunk of a message, got 1"),
        ([(0, False, 100), (2, False, 10)], "chunk_index: expected 1, got 2"),
        ([(0, False, 100), (1, True, 10)], "tensor: expected 156 bytes in the last chunk, got 10"),
        ([(0, False, 256)], "tensor: expected 1 to 255 bytes in a first of several chunks, got 256"),
        ([(0, True, 255)], "total_bytes: expected 255, the bytes of the only chunk, got 256"),
    ],
)
def test_pieces_that_do_not_fit(
    quick: WorkerClient, pieces: list[tuple[int, bool, int]], message: str
) -> None:
    for index, last, size in pieces:
        header = Header(correlation_id=1, chunk_index=index, last_chunk=last)
        if index == 0:
            header = quick.request(1, last_chunk=last)
        quick.link.send(write_frame(header, bytes(size)))
    header = quick.reply().header
    assert (header.correlation_id, header.kind, header.error_message) == (1, KIND.FRAME_KIND_ERROR, message)
    assert quick.call(quick.request(2)).header.kind == KIND.FRAME_KIND_RESULT
    assert quick.status().queued == 0


def test_a_wrong_checksum_is_answered(quick: WorkerClient) -> None:
    data = bytearray(b"".join(write_frame(quick.request(4), bytes(256))))
    data[-1] ^= 0x10
    quick.link.send((bytes(data),))
    header = quick.reply().header
    assert (header.correlation_id, header.kind, header.retry) == (4, KIND.FRAME_KIND_ERROR, SAME)
    assert header.error_message.startswith("crc32c: expected 0x")
    assert quick.call(quick.request(5)).header.kind == KIND.FRAME_KIND_RESULT


def test_bytes_that_are_no_frame_end_their_stream_alone(client: WorkerClient, gate: Gate) -> None:
    bad = client.open_link()
    client.send(client.request(1))
    gate.wait_entered()
    bad.send((b"\xff\xff\xff",))
    with pytest.raises(
        WorkerLost, match=r"stream lost: DATA_LOSS: frame: expected a colibri.v1.Frame, got 3 bytes"
    ):
        bad.receive(WAIT_S)
    gate.open.release(10)
    assert client.reply().header.kind == KIND.FRAME_KIND_RESULT


def test_a_stream_that_breaks_takes_its_work_along(client: WorkerClient, gate: Gate) -> None:
    client.send(client.request(1))
    gate.wait_entered()
    doomed = client.open_link()
    for number in (1, 2):
        header = client.request(number, rows=number + 1)
        for parts in message_frames(header, tensor_of(header, None, client.limits)):
            doomed.send(parts)
    eventually(lambda: client.status().queued == 2)
    doomed.close()
    eventually(lambda: client.status().queued == 0)
    assert client.status().requests_cancelled == 2
    gate.open.release(10)
    assert client.reply().header.kind == KIND.FRAME_KIND_RESULT
    assert gate.order == [1]


def test_streams_beyond_the_limit_are_refused(quick: WorkerClient) -> None:
    links = [quick.open_link() for _ in range(3)]
    for link in (quick.link, *links):
        link.send(write_frame(quick.request(1), bytes(256)))
        assert quick.reply(link).header.kind == KIND.FRAME_KIND_RESULT
    extra = quick.open_link()
    with pytest.raises(
        WorkerLost, match=r"RESOURCE_EXHAUSTED: w0: 4 streams are open, the limit of this worker"
    ):
        extra.receive(WAIT_S)
    links[0].close()

    def opens() -> bool:
        link = quick.open_link()
        try:
            link.send(write_frame(quick.request(1), bytes(256)))
            return quick.reply(link).header.kind == KIND.FRAME_KIND_RESULT
        except WorkerLost:
            return False

    eventually(opens)


def test_a_router_that_does_not_read_holds_up_nobody(config: WorkerConfig, tiny_mixtral: Path) -> None:
    rows = 1024

    def zeros(layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        return np.zeros((len(x), x.shape[1]), np.float32), np.zeros(len(x), np.uint32)

    with worker_inside(config, zeros) as client:
        deaf = client.open_link()
        # Its queue of received frames holds 64 MiB; this is far more, and nobody takes any.
        deaf._inbox_bytes._limit = 1 << 20
        header = client.request(1, rows)
        frames = [b"".join(parts) for parts in message_frames(header, tensor_of(header, None, client.limits))]
        for _ in range(60):
            deaf.send(frames)
        for number in range(20):
            assert client.call(client.request(number)).header.kind == KIND.FRAME_KIND_RESULT


def test_an_error_in_compute_is_answered_and_the_worker_lives(config: WorkerConfig) -> None:
    def broken(layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        if layer == 1:
            raise ValueError("secret detail")
        return np.zeros((len(x), x.shape[1]), np.float32), np.zeros(len(x), np.uint32)

    with worker_inside(config, broken) as client:
        header = client.call(client.request(1, layer=1)).header
        assert (header.kind, header.retry) == (KIND.FRAME_KIND_ERROR, NEVER)
        assert header.error_message == "w0: internal error (ValueError)"
        assert client.call(client.request(2)).header.kind == KIND.FRAME_KIND_RESULT


def mutated(draw: random.Random, client: WorkerClient, number: int) -> bytes:
    rows = draw.randrange(1, 6)
    header = client.request(number, rows, layer=draw.randrange(3), priority=draw.randrange(3))
    data = bytearray(b"".join(write_frame(header, draw.randbytes(rows * client.limits.row_bytes))))
    for _ in range(draw.randrange(1, 5)):
        # Mostly in the header, where a change means something.
        at = draw.randrange(min(len(data), 200)) if draw.random() < 0.9 else draw.randrange(len(data))
        what = draw.randrange(4)
        if what == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif what == 1:
            data[at] = draw.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        elif what == 2:
            del data[at : at + draw.randrange(1, 4)]
        else:
            data[at:at] = draw.randbytes(draw.randrange(1, 4))
    return bytes(data)


def with_checksum(data: bytes) -> bytes:
    """The same frame with a checksum that is right, so that more than the checksum is tried."""
    try:
        frame: Frame = read_frame(data)
        return b"".join(write_frame(frame.header, frame.tensor))
    except Exception:
        return data


def test_mutated_frames_do_not_hurt_a_worker(tiny_mixtral: Path, tmp_path: Path) -> None:
    draw = random.Random(20261129)
    with worker_process(tiny_mixtral, f"unix:{tmp_path}/w.sock", "--max-queued=8") as worker:
        client = WorkerClient(worker.target, limits_of(tiny_mixtral, "fp32"))
        client.load()
        good, x = client.request(1), np.ones((1, 64), np.float32)
        expected = bytes(client.call(good, x).tensor)
        kinds: dict[int, int] = {}
        ended = 0

        def attack(count: int) -> None:
            nonlocal ended
            link = client.open_link()
            for number in range(count):
                data = mutated(draw, client, number)
                try:
                    link.send((with_checksum(data) if draw.random() < 0.8 else data,))
                    if number % 4 == 3:
                        while True:
                            kind = read_frame(bytes(link.receive(0.02))).header.kind
                            kinds[kind] = kinds.get(kind, 0) + 1
                except WorkerLost:
                    ended += 1
                    link.close()
                    link = client.open_link()
                except Exception:
                    continue
            link.close()

        attack(400)
        assert_flat(lambda: attack(3000), lambda: {"rss": worker.rss_bytes()}, {"rss": 24 << 20})
        assert worker.process.poll() is None
        assert bytes(client.call(client.request(2), x).tensor) == expected
        status = client.status()
        eventually(lambda: client.status().queued == 0)
        client.close()
        # Everything was really tried: results, refusals and unreadable bytes.
        assert status.requests_refused > 100
        assert ended > 20
        assert kinds[KIND.FRAME_KIND_RESULT] > 20
        assert kinds[KIND.FRAME_KIND_ERROR] > 100
