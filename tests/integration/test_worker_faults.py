"""The service Faults of a real worker: what its answers become on a real link."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from colibri.errors import FrameError
from colibri.expert_service.config import WorkerConfig
from colibri.v1 import expert_pb2, faults_pb2, faults_pb2_grpc
from colibri.wire.frame import read_frame, verify
from tests.support.worker_client import WAIT_S, WorkerClient, failure, worker_inside

Fault = faults_pb2.Fault
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
        allow_faults=True,
    )


@pytest.fixture
def client(config: WorkerConfig) -> Iterator[WorkerClient]:
    with worker_inside(config) as client:
        client.load()
        yield client


def set_faults(client: WorkerClient, *faults: Fault) -> faults_pb2.SetFaultsReply:
    stub: faults_pb2_grpc.FaultsStub = faults_pb2_grpc.FaultsStub(client.channel)
    return stub.SetFaults(faults_pb2.SetFaultsRequest(faults=faults), timeout=WAIT_S)


def fault(kind: Fault.Kind.ValueType, **changes: object) -> Fault:
    return Fault(kind=kind, **({"probability": 1.0} | changes))  # type: ignore[arg-type]


def test_without_the_flag_there_is_no_such_service(config: WorkerConfig) -> None:
    with worker_inside(replace(config, allow_faults=False)) as client:
        error = failure(lambda: set_faults(client))
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED


def test_an_unknown_kind_or_value_is_refused_and_changes_nothing(client: WorkerClient) -> None:
    set_faults(client, fault(Fault.KIND_DUPLICATE))
    for bad in (fault(Fault.KIND_UNSPECIFIED), fault(Fault.KIND_BUSY, probability=2.0)):
        error = failure(lambda bad=bad: set_faults(client, bad))  # type: ignore[misc]
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    client.call(client.request(1))
    assert client.reply().header.correlation_id == 1


def test_corrupt_and_truncated_answers(client: WorkerClient) -> None:
    set_faults(client, fault(Fault.KIND_CORRUPT, most=5))
    for number in range(5):
        client.send(client.request(number))
        with pytest.raises(FrameError):
            verify(read_frame(bytes(client.link.receive(WAIT_S))))
    good = client.call(client.request(10))
    set_faults(client, fault(Fault.KIND_TRUNCATE, most=1))
    client.send(client.request(10))
    assert len(bytes(client.link.receive(WAIT_S))) > 0
    assert bytes(client.call(client.request(10)).tensor) == bytes(good.tensor)
    reply = set_faults(client)
    assert reply.injected == 6
    assert dict(reply.by_kind) == {Fault.KIND_CORRUPT: 5, Fault.KIND_TRUNCATE: 1}


def test_one_unit_too_few(client: WorkerClient) -> None:
    full = client.call(client.request(1, rows=3))
    set_faults(client, fault(Fault.KIND_WRONG_SHAPE))
    short = client.call(client.request(2, rows=3))
    assert short.header.units == full.header.units - 1
    assert bytes(full.tensor).startswith(bytes(short.tensor))
    assert len(short.tensor) == short.header.units * client.limits.result_row_bytes


def test_a_late_answer_is_overtaken(client: WorkerClient) -> None:
    set_faults(client, fault(Fault.KIND_LATE, delay_us=300_000, most=1))
    begun = time.monotonic()
    client.send(client.request(1))
    client.send(client.request(2))
    order = [client.reply().header.correlation_id for _ in range(2)]
    assert order == [2, 1]
    assert time.monotonic() - begun >= 0.3


def test_a_slow_answer_holds_up_what_is_behind_it(client: WorkerClient) -> None:
    set_faults(client, fault(Fault.KIND_SLOW, delay_us=200_000, most=1))
    begun = time.monotonic()
    client.send(client.request(1))
    client.send(client.request(2))
    assert [client.reply().header.correlation_id for _ in range(2)] == [1, 2]
    assert time.monotonic() - begun >= 0.2


def test_a_full_queue_and_a_refused_load(client: WorkerClient) -> None:
    set_faults(client, fault(Fault.KIND_BUSY), fault(Fault.KIND_REFUSE_LOAD))
    assert client.call(client.request(1)).header.kind == KIND.FRAME_KIND_BUSY
    error = failure(client.load)
    assert error.code() is grpc.StatusCode.INTERNAL
    set_faults(client)
    assert client.call(client.request(2)).header.kind == KIND.FRAME_KIND_RESULT
    client.load()


def test_an_answer_is_sent_twice(client: WorkerClient) -> None:
    expected = client.call(client.request(1, rows=100))
    set_faults(client, fault(Fault.KIND_DUPLICATE, most=1))
    for frame in (client.call(client.request(2, rows=100)), client.reply()):
        assert frame.header.correlation_id == 2
        assert bytes(frame.tensor) == bytes(expected.tensor)
    assert client.call(client.request(3)).header.correlation_id == 3


def test_a_held_answer_of_a_peer_that_left_is_dropped(config: WorkerConfig) -> None:
    with worker_inside(config) as client:
        client.load()
        set_faults(client, fault(Fault.KIND_LATE, delay_us=60_000_000))
        client.send(client.request(1))
        link = client.open_link()
        link.close()
    # The worker ended in time though an answer was held for a minute.
