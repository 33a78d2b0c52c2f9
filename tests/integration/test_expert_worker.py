"""A real worker process: results, control calls, and what it says about itself."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest

from colibri.errors import InvalidInput, NumericsMismatch, StaleEpoch
from colibri.expert_service.epochs import AHEAD
from colibri.expert_service.execute import run_units
from colibri.expert_service.store import WeightStore
from colibri.kernels.api import F32, Array, ComputeMode, UnitBatch
from colibri.kernels.arithmetic.floats import to_rows
from colibri.kernels.factory import make_backend
from colibri.models.checkpoint import Checkpoint
from colibri.numerics import ExpertNumerics
from colibri.rpc.status import from_rpc_error
from colibri.v1 import expert_pb2
from colibri.wire.chunks import message_frames
from colibri.wire.frame import scan_frame
from colibri.wire.header import Header
from colibri.wire.limits import CHUNK_BYTES
from tests.support.frames import message_of, u32
from tests.support.growth import assert_flat
from tests.support.worker_client import (
    WAIT_S,
    WorkerClient,
    WorkerProcess,
    all_experts,
    eventually,
    failure,
    limits_of,
    tensor_of,
    units_of,
    worker_process,
)

MAX_ROWS = 8192


@pytest.fixture(scope="module", params=["unix", "tcp"])
def worker(
    request: pytest.FixtureRequest, tiny_mixtral: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkerProcess]:
    unix = f"unix:{tmp_path_factory.mktemp('worker')}/w.sock"
    listen = unix if request.param == "unix" else "127.0.0.1:0"
    with worker_process(tiny_mixtral, listen, f"--max-rows={MAX_ROWS}") as process:
        client = WorkerClient(process.target, limits_of(tiny_mixtral, "fp32", MAX_ROWS))
        client.load()
        client.close()
        yield process


@pytest.fixture
def client(worker: WorkerProcess, tiny_mixtral: Path) -> Iterator[WorkerClient]:
    client = WorkerClient(worker.target, limits_of(tiny_mixtral, "fp32", MAX_ROWS))
    yield client
    client.close()


@pytest.fixture(scope="module")
def oracle(tiny_mixtral: Path) -> Iterator[Any]:
    """Computes a request in this process."""
    backend = make_backend("cpu", threads=1)
    store = WeightStore(Checkpoint.open(tiny_mixtral), backend, ComputeMode.FP32)
    store.load([(layer, expert) for layer in range(3) for expert in range(8)])

    def compute(header: Header, x: Array) -> F32:
        batch = UnitBatch(
            header.group_expert,
            header.group_count,
            header.entry_row,
            header.entry_slot,
            header.entry_unit,
            header.entry_weight,
            header.unit_slots,
        )
        return run_units(backend, store, header.layer, x, batch)[0]

    yield compute
    backend.close()


def rows(count: int, seed: int = 0, hidden: int = 64) -> Array:
    return to_rows(np.random.default_rng(seed).standard_normal((count, hidden)), ComputeMode.FP32)


@pytest.mark.parametrize("count", [1, 2, 15, 33, 5000])
def test_results_are_those_of_the_one_routine(client: WorkerClient, oracle: Any, count: int) -> None:
    x = rows(count, seed=count)
    request = client.request(
        count, count, layer=2, incarnation=7, trace_id=bytes(range(16)), remaining_us=60_000_000
    )
    frame = client.call(request, x)
    header = frame.header
    assert header.kind == expert_pb2.FRAME_KIND_RESULT, header.error_message
    assert (header.correlation_id, header.attempt, header.epoch, header.incarnation) == (count, 0, 1, 7)
    assert (header.layer, header.rows, header.hidden, header.units) == (2, count, 64, count)
    assert header.trace_id == bytes(range(16))
    assert header.unit_status.size == 0
    assert header.compute_us > 0
    assert units_of(frame, client.limits).tobytes() == oracle(request, x).tobytes()


def test_an_idle_worker_takes_no_cpu_time(tiny_mixtral: Path, tmp_path: Path) -> None:
    """All of the process: pool, gRPC's threads and our own, after it has loaded and computed."""
    with worker_process(tiny_mixtral, f"unix:{tmp_path}/w.sock", "--cpu-threads=2") as worker:
        client = WorkerClient(worker.target, limits_of(tiny_mixtral, "fp32"))
        client.load()
        assert client.call(client.request(1, 33), rows(33)).header.kind == expert_pb2.FRAME_KIND_RESULT
        time.sleep(0.5)
        before = worker.cpu_seconds()
        time.sleep(2.0)
        assert worker.cpu_seconds() - before < 0.1
        client.close()


def exchange_objects(client: WorkerClient, messages: list[expert_pb2.Frame]) -> list[expert_pb2.Frame]:
    """Sends and receives ordinary protobuf objects, as a program in any language would."""
    outbox: SimpleQueue[expert_pb2.Frame | None] = SimpleQueue()
    for message in (*messages, None):
        outbox.put(message)
    return list(client.stub.Exchange(iter(outbox.get, None), timeout=WAIT_S))


@pytest.mark.parametrize("count", [1, 5000])
def test_ordinary_protobuf_objects_get_the_same_bytes(client: WorkerClient, count: int) -> None:
    x = rows(count, seed=3)
    request = client.request(77, count, layer=1)
    fast = client.call(request, x)
    tensor = bytes(tensor_of(request, x, client.limits))
    pieces = [tensor[at : at + CHUNK_BYTES] for at in range(0, len(tensor), CHUNK_BYTES)]
    messages = []
    for index, parts in enumerate(message_frames(client.request(77, count, layer=1), tensor)):
        message = expert_pb2.Frame.FromString(b"".join(parts))
        # Built field by field from what was meant, not from what our writer wrote.
        if index == 0:
            request.total_bytes, request.last_chunk = len(tensor), len(pieces) == 1
            request.crc32c = message.header.crc32c
            assert message_of(request, pieces[0]) == message
            message = message_of(request, pieces[0])
        messages.append(message)
    replies = exchange_objects(client, messages)
    assert b"".join(reply.tensor for reply in replies) == fast.tensor
    assert len(replies) == max(1, -(-len(fast.tensor) // CHUNK_BYTES))
    first = replies[0].header
    assert (first.kind, first.units, first.total_bytes) == (
        expert_pb2.FRAME_KIND_RESULT,
        count,
        len(fast.tensor),
    )
    assert replies[-1].header.last_chunk


def test_other_legal_encodings_of_a_request(client: WorkerClient, oracle: Any) -> None:
    """Fields out of order, a list unpacked, an unknown field: protobuf's parser takes over."""
    x = rows(1)
    request = client.request(5)
    (parts,) = message_frames(request, tensor_of(request, x, client.limits))
    frame_message = expert_pb2.Frame.FromString(b"".join(parts))
    header = frame_message.header.SerializeToString() + b"\xf8\x3e\x05"
    length = bytes((len(header) & 127 | 128, len(header) >> 7))
    odd = expert_pb2.Frame(tensor=frame_message.tensor).SerializeToString() + b"\x0a" + length + header
    assert scan_frame(odd) is None
    client.link.send((odd,))
    frame = client.reply()
    assert frame.header.kind == expert_pb2.FRAME_KIND_RESULT, frame.header.error_message
    assert units_of(frame, client.limits).tobytes() == oracle(request, x).tobytes()


def test_a_small_request_overtakes_the_pieces_of_a_big_one(client: WorkerClient, oracle: Any) -> None:
    big, x = client.request(1, 5000), rows(5000, seed=9)
    first, *others = message_frames(big, tensor_of(big, x, client.limits))
    client.link.send(first)
    small = client.call(client.request(2), rows(1))
    assert small.header.correlation_id == 2
    for parts in others:
        client.link.send(parts)
    assert units_of(client.reply(), client.limits).tobytes() == oracle(big, x).tobytes()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_row_that_is_not_finite_fails_alone(client: WorkerClient, oracle: Any, poison: float) -> None:
    x = rows(4, seed=4)
    request = client.request(1, 4)
    expected = oracle(request, x)
    x[2, 63] = poison
    frame = client.call(request, x)
    assert frame.header.kind == expert_pb2.FRAME_KIND_RESULT
    assert frame.header.unit_status.tolist() == [0, 0, 1, 0]
    units = units_of(frame, client.limits)
    assert not units[2].any()
    assert np.delete(units, 2, axis=0).tobytes() == np.delete(expected, 2, axis=0).tobytes()


def test_status_tells_what_the_kernel_says(worker: WorkerProcess, client: WorkerClient) -> None:
    status = client.status()
    assert (status.worker, status.incarnation, status.pid) == ("w0", 7, worker.pid)
    assert set(status.cpus_allowed) == os.sched_getaffinity(worker.pid)
    assert (status.compute_threads, status.numa_node, status.oversubscribed) == (1, -1, False)
    assert status.experts_loaded == 24
    assert status.weight_bytes >= 24 * 3 * 64 * 96 * 2
    assert sum(status.weight_pages_by_node.values()) > 0
    assert min(status.weight_pages_by_node) >= 0
    assert status.threads == len(os.listdir(f"/proc/{worker.pid}/task"))
    assert status.open_fds == len(os.listdir(f"/proc/{worker.pid}/fd"))
    assert status.isa
    assert status.expert_numerics_id == ExpertNumerics.of("cpu", "fp32", "bf16").id
    assert status.build_version


def test_pinning_is_read_back(tiny_mixtral: Path, tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    flags = (f"--cpus={cpu}", "--numa-node=0", "--share-cpus")
    with worker_process(tiny_mixtral, f"unix:{tmp_path}/w.sock", *flags) as worker:
        client = WorkerClient(worker.target, limits_of(tiny_mixtral, "fp32"))
        client.load()
        status = client.status()
        client.close()
        assert list(status.cpus_allowed) == [cpu]
        for task in os.listdir(f"/proc/{worker.pid}/task"):
            assert os.sched_getaffinity(int(task)) == {cpu}
        assert (status.numa_node, status.oversubscribed) == (0, True)
        assert set(status.weight_pages_by_node) == {0}


def test_descriptors_and_threads_are_flat_in_the_number_of_experts(
    tiny_mixtral: Path, tmp_path: Path
) -> None:
    with worker_process(tiny_mixtral, f"unix:{tmp_path}/w.sock") as worker:
        client = WorkerClient(worker.target, limits_of(tiny_mixtral, "fp32"))
        # The same calls on one expert first: a pool's threads start with the calls that need them, a few by
        # chance.
        for _ in range(24):
            client.load([expert_pb2.ExpertId(layer=0, expert=0)])
        for number in range(50):
            client.call(client.request(number, group_expert=u32(0), group_count=u32(1), **one_entry()))
        before = client.status()
        for ids in all_experts(client.limits):
            client.load([ids])
        for number in range(50):
            client.call(client.request(number, layer=number % 3))
        after = client.status()
        client.close()
    assert after.experts_loaded == 24
    assert after.open_fds <= before.open_fds + 2
    assert after.threads <= before.threads + 4


def one_entry() -> dict[str, Any]:
    return {
        "entry_row": u32(0),
        "entry_slot": u32(0),
        "entry_unit": u32(0),
        "entry_weight": np.ones(1, np.float32),
        "unit_slots": u32(1),
    }


def test_handshake(client: WorkerClient, tiny_mixtral: Path) -> None:
    right: dict[str, Any] = {
        "protocol_min": 1,
        "protocol_max": 3,
        "model_hash": Checkpoint.open(tiny_mixtral).model_hash(),
        "expert_numerics_id": ExpertNumerics.of("cpu", "fp32", "bf16").id,
        "router_name": "r1",
    }

    def shake(**changes: Any) -> expert_pb2.HandshakeReply:
        return client.stub.Handshake(expert_pb2.HandshakeRequest(**(right | changes)), timeout=WAIT_S)

    reply = shake()
    assert (reply.protocol, reply.worker, reply.incarnation) == (1, "w0", 7)
    assert (reply.max_rows, reply.max_queued) == (MAX_ROWS, 64)
    assert reply.max_message_bytes == MAX_ROWS * 64 * 4
    for changes, message in (
        ({"protocol_min": 2}, "protocol: router 'r1' speaks 2 to 3, worker w0 1 to 1"),
        ({"protocol_min": 0, "protocol_max": 0}, "protocol: router 'r1' speaks 0 to 0, worker w0 1 to 1"),
        (
            {"model_hash": "feed"},
            f"model_hash: router 'r1' has 'feed', worker w0 has '{right['model_hash']}'",
        ),
        ({"model_hash": ""}, f"model_hash: router 'r1' has '', worker w0 has '{right['model_hash']}'"),
        ({"pack_hash": "p"}, "pack_hash: router 'r1' has 'p', worker w0 has ''"),
        (
            {"expert_numerics_id": "cuda/x"},
            f"expert_numerics_id: router 'r1' has 'cuda/x', worker w0 has '{right['expert_numerics_id']}'; only with"
            " --mixed-numerics of the router do such workers serve together",
        ),
    ):
        error = from_rpc_error(failure(lambda changes=changes: shake(**changes)), "w0")  # type: ignore[misc]
        assert isinstance(error, NumericsMismatch)
        assert (error.message, error.retryable, error.peer) == (message, False, "w0")


def test_absurd_epochs_change_nothing(tiny_mixtral: Path, tmp_path: Path) -> None:
    """One wrong number would make the worker refuse all that follows, for good."""
    with worker_process(tiny_mixtral, f"unix:{tmp_path}/w.sock") as worker:
        client = WorkerClient(worker.target, limits_of(tiny_mixtral, "fp32"))
        try:
            absurd_epochs(client)
        finally:
            client.close()


def absurd_epochs(client: WorkerClient) -> None:
    client.load(epoch=1)
    everything = all_experts(client.limits)

    def retire(epoch: int) -> object:
        request = expert_pb2.RetireRequest(epochs_below=epoch, experts=everything)
        return client.stub.Retire(request, timeout=WAIT_S)

    for number, epoch in enumerate((1 << 40, (1 << 64) - 1, 2 + AHEAD), start=1):
        error = from_rpc_error(failure(partial(retire, epoch)), "w0")
        assert isinstance(error, InvalidInput)
        assert error.message.startswith(f"epochs_below: expected at most {1 + AHEAD}, ")
        error = from_rpc_error(failure(partial(client.load, epoch=epoch)), "w0")
        assert isinstance(error, InvalidInput)
        assert error.message.startswith(f"epoch: expected at most {1 + AHEAD}, ")
        refused = client.call(client.request(number, epoch=epoch))
        assert refused.header.kind == expert_pb2.FRAME_KIND_ERROR
    status = client.status()
    assert (status.experts_loaded, status.epoch_min) == (len(everything), 0)
    assert client.call(client.request(9, epoch=1)).header.kind == expert_pb2.FRAME_KIND_RESULT


def test_load_and_retire(tiny_mixtral: Path, tmp_path: Path) -> None:
    with worker_process(tiny_mixtral, f"unix:{tmp_path}/w.sock") as worker:
        client = WorkerClient(worker.target, limits_of(tiny_mixtral, "fp32"))
        try:
            load_and_retire(client)
        finally:
            client.close()


def load_and_retire(client: WorkerClient) -> None:
    missing = client.call(client.request(1))
    assert missing.header.kind == expert_pb2.FRAME_KIND_NOT_LOADED
    assert missing.header.retry == expert_pb2.RETRY_ADVICE_OTHER_WORKER
    assert missing.header.error_message == "expert 0 of layer 0 is not loaded here"

    progress = client.load()
    assert [step.experts_done for step in progress] == list(range(25))
    assert [step.done for step in progress] == [False] * 24 + [True]
    assert progress[-1].experts_total == 24
    assert progress[-1].read_seconds > 0
    assert progress[-1].pack_seconds > 0
    assert client.load()[-1].bytes_done == progress[-1].bytes_done == client.status().weight_bytes

    for ids, message in (
        (expert_pb2.ExpertId(layer=3), "layer: expected 0 to 2, got 3"),
        (expert_pb2.ExpertId(expert=8), "expert: expected 0 to 7, got 8"),
    ):
        error = from_rpc_error(failure(lambda ids=ids: client.load([ids])), "w0")  # type: ignore[misc]
        assert isinstance(error, InvalidInput)
        assert error.message == message

    retire = expert_pb2.RetireRequest(epochs_below=2, experts=[expert_pb2.ExpertId(layer=0, expert=0)])
    freed = client.stub.Retire(retire, timeout=WAIT_S).bytes_freed
    assert freed == progress[-1].bytes_done // 24
    assert client.stub.Retire(retire, timeout=WAIT_S).bytes_freed == 0
    status = client.status()
    assert (status.experts_loaded, status.epoch_min) == (23, 2)
    stale = client.call(client.request(2, epoch=1, layer=1))
    assert stale.header.kind == expert_pb2.FRAME_KIND_STALE_EPOCH
    assert stale.header.retry == expert_pb2.RETRY_ADVICE_SAME_WORKER
    assert "expected at least 2, the oldest still served, got 1" in stale.header.error_message
    assert client.call(client.request(3, epoch=2, layer=1)).header.kind == expert_pb2.FRAME_KIND_RESULT
    assert client.call(client.request(4, epoch=9, layer=1)).header.kind == expert_pb2.FRAME_KIND_RESULT
    assert client.call(client.request(5, epoch=2)).header.kind == expert_pb2.FRAME_KIND_NOT_LOADED
    error = from_rpc_error(failure(lambda: client.load(epoch=1)), "w0")
    assert isinstance(error, StaleEpoch)
    status = client.status()
    assert (status.requests_done, status.requests_refused, status.rows_done) == (2, 3, 2)


def test_streams_come_and_go_without_a_trace(worker: WorkerProcess, client: WorkerClient) -> None:
    def one() -> None:
        link = client.open_link()
        for parts in message_frames(client.request(1), bytes(64 * 4)):
            link.send(parts)
        client.reply(link)
        link.close()

    for _ in range(20):
        one()
    threads = client.status().threads

    def many() -> None:
        for _ in range(300):
            one()
        eventually(lambda: client.status().threads <= threads + 8)

    def held() -> dict[str, int]:
        return {"rss": worker.rss_bytes(), "fds": client.status().open_fds}

    assert_flat(many, held, {"rss": 16 << 20, "fds": 1})


def test_the_checkpoint_is_the_only_place_experts_come_from() -> None:
    """A path, a URL or a name must never come over the wire."""
    fields = {field.name: field for field in expert_pb2.LoadRequest.DESCRIPTOR.fields}
    assert set(fields) == {"epoch", "experts", "yielding"}
    assert fields["yielding"].type == fields["yielding"].TYPE_BOOL
    ids = expert_pb2.ExpertId.DESCRIPTOR.fields
    assert {field.type for field in ids} == {ids[0].TYPE_UINT32}


def test_reflection_describes_the_data_plane(client: WorkerClient) -> None:
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    pool = DescriptorPool(ProtoReflectionDescriptorDatabase(client.channel))
    service = pool.FindServiceByName("colibri.v1.Expert")
    exchange = service.methods_by_name["Exchange"]
    assert (exchange.input_type.full_name, exchange.output_type.full_name) == ("colibri.v1.Frame",) * 2


def test_a_call_that_does_not_exist(client: WorkerClient) -> None:
    evil: Any = client.channel.unary_unary("/colibri.v1.Expert/Evil")
    error = failure(lambda: evil(b"", timeout=WAIT_S))
    assert isinstance(error, grpc.Call)
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED
