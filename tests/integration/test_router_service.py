"""The gRPC service Router over real workers, asked by a client that knows nothing but what reflection
tells."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from colibri.coordinator.scheduling.step_pauses import StepPauses
from colibri.deadline import Deadline
from colibri.errors import Busy, ColibriError, WorkerLost
from colibri.grpc_options import channel_options, server_options
from colibri.kernels.api import F32, U32, Array, ComputeMode, UnitBatch
from colibri.kernels.arithmetic.floats import to_rows
from colibri.placement import Directory, Membership, Reading
from colibri.router_service.executor import Answers, LocalExecutor
from colibri.router_service.plan import LayerPlan
from colibri.router_service.router import MoeRouter
from colibri.router_service.servicer import SERVICE, RouterServicer, max_message_bytes
from colibri.rpc.server import build_server
from colibri.rpc.status import PEER_KEY, RETRY_AFTER_KEY, RETRYABLE_KEY
from tests.support.expert_servers import MoeBench, membership_of

MAX_ROWS = 300
OK, NOT_FINITE = 0, 1


class ReflectedClient:
    """Built at run time: methods and messages come from the server's own descriptors."""

    def __init__(self, target: str, max_bytes: int) -> None:
        self._channel = grpc.insecure_channel(target, options=channel_options(max_bytes))
        database = ProtoReflectionDescriptorDatabase(self._channel)
        assert SERVICE in database.get_services()
        pool = DescriptorPool(database)
        self._service = pool.FindServiceByName(SERVICE)

    def call(self, method: str, timeout: float = 30.0, **fields: Any) -> Any:
        found = self._service.methods_by_name[method]
        request = GetMessageClass(found.input_type)(**fields)
        stub: grpc.UnaryUnaryMultiCallable[Any, Any] = self._channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(found.output_type).FromString,
        )
        return stub(request, timeout=timeout)

    def forward(self, layer: int, x: F32, **more: Any) -> Any:
        rows, hidden = x.shape
        return self.call("Forward", layer=layer, rows=rows, hidden=hidden, data=x.tobytes(), **more)

    def close(self) -> None:
        self._channel.close()


@dataclass
class Served:
    bench: MoeBench
    router: MoeRouter
    client: ReflectedClient


@contextmanager
def serve(bench: MoeBench, router: MoeRouter, pauses: StepPauses | None = None) -> Iterator[Served]:
    servicer = RouterServicer(
        router,
        model_hash=bench.checkpoint.model_hash(),
        expert_numerics_id=bench.numerics.id,
        max_rows=MAX_ROWS,
        pauses=pauses,
    )
    limit = max_message_bytes(bench.hidden, MAX_ROWS)
    server = build_server(
        [servicer.as_service()],
        listen=f"unix:{bench.folder}/router",
        options=server_options(limit),
        name="router",
    )
    server.start()
    server.set_serving(True)
    client = ReflectedClient(server.target, limit)
    try:
        yield Served(bench, router, client)
    finally:
        client.close()
        server.stop(0)


@pytest.fixture(scope="module", params=list(ComputeMode), ids=lambda mode: mode.value)
def served(
    request: pytest.FixtureRequest, tiny_mixtral: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    bench = MoeBench(tiny_mixtral, ComputeMode(request.param), tmp_path_factory.mktemp("router"))
    with ExitStack() as stack:
        servers = stack.enter_context(bench.workers(2))
        directory = Directory(membership_of(bench.spread(2), *servers.values()))
        router, _ = stack.enter_context(bench.remote(directory))
        yield stack.enter_context(serve(bench, router))


def fp32_rows(served: Served, rows: int, seed: int = 0) -> F32:
    """Rows as a caller has them: not rounded to the mode's dtype."""
    return np.random.default_rng(seed).standard_normal((rows, served.bench.hidden)).astype(np.float32)


def rows_in(reply: Any) -> F32:
    return np.frombuffer(reply.data, dtype="<f4").reshape(reply.rows, reply.hidden)


def metadata_of(error: grpc.RpcError) -> dict[str, Any]:
    assert isinstance(error, grpc.Call)
    return dict(error.trailing_metadata() or ())


@pytest.mark.parametrize("rows", [1, 2, 33, MAX_ROWS])
def test_forward_equals_the_local_layer(served: Served, rows: int) -> None:
    bench = served.bench
    x = fp32_rows(served, rows, rows)
    for layer in range(bench.layers):
        reply = served.client.forward(layer, x, priority=3)
        expected = bench.local().forward(layer, to_rows(x, bench.mode))
        assert np.array_equal(rows_in(reply), expected.rows)
        assert list(reply.status) == []
        assert reply.epoch == 1
        assert reply.expert_numerics_id == bench.numerics.id


class Engine:
    """What stands for one: it takes steps without a pause, and notes how many pieces came between them."""

    def __init__(self) -> None:
        self.pauses = StepPauses()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            with self.pauses.step():
                time.sleep(1e-4)

    def __enter__(self) -> StepPauses:
        self._thread.start()
        while not self.pauses.busy:
            time.sleep(1e-4)
        return self.pauses

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_large_calls_beside_an_engine_give_the_same_rows(tiny_mixtral: Path, tmp_path: Path) -> None:
    bench = MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path)
    x = np.random.default_rng(5).standard_normal((MAX_ROWS, bench.hidden)).astype(np.float32)
    x[[0, 70, MAX_ROWS - 1], 1] = np.nan
    expected = bench.local().forward(0, x)
    chosen = bench.local().gate(0, x)
    with ExitStack() as stack:
        servers = stack.enter_context(bench.workers(2))
        directory = Directory(membership_of(bench.spread(2), *servers.values()))
        router, _ = stack.enter_context(bench.remote(directory))
        pauses = stack.enter_context(Engine())
        client = stack.enter_context(serve(bench, router, pauses)).client
        with ThreadPoolExecutor(4) as pool:
            for reply in pool.map(lambda _: client.forward(0, x), range(4)):
                assert np.array_equal(rows_in(reply), expected.rows)
                assert np.flatnonzero(reply.status).tolist() == [0, 70, MAX_ROWS - 1]
        gate = client.call("Gate", layer=0, rows=MAX_ROWS, hidden=bench.hidden, data=x.tobytes())
    assert list(gate.expert) == chosen.experts.ravel().tolist()
    assert list(gate.weight) == chosen.weights.ravel().tolist()


def test_gate_equals_the_local_gate(served: Served) -> None:
    bench = served.bench
    x = fp32_rows(served, 17)
    reply = served.client.call("Gate", layer=1, rows=17, hidden=bench.hidden, data=x.tobytes())
    expected = bench.local().gate(1, to_rows(x, bench.mode))
    assert (reply.rows, reply.top_k) == (17, bench.top_k)
    assert list(reply.expert) == expected.experts.ravel().tolist()
    assert list(reply.weight) == expected.weights.ravel().tolist()
    assert list(reply.status) == []


def test_router_info(served: Served) -> None:
    bench = served.bench
    reply = served.client.call("RouterInfo")
    assert reply.model_hash == bench.checkpoint.model_hash()
    assert (reply.layers, reply.hidden, reply.experts) == (bench.layers, bench.hidden, bench.experts)
    assert (reply.top_k, reply.compute_mode) == (bench.top_k, bench.mode.value)
    assert (reply.expert_numerics_id, reply.epoch) == (bench.numerics.id, 1)
    assert list(reply.workers) == ["w0", "w1"]
    assert reply.max_rows == MAX_ROWS


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_bad_row_has_its_own_status(served: Served, poison: float) -> None:
    bench = served.bench
    x = fp32_rows(served, 6)
    expected = bench.local().forward(0, to_rows(x, bench.mode)).rows
    x[2, 5] = poison
    expected[2] = 0
    reply = served.client.forward(0, x)
    assert np.array_equal(rows_in(reply), expected)
    assert list(reply.status) == [OK, OK, NOT_FINITE, OK, OK, OK]
    gate = served.client.call("Gate", layer=0, rows=6, hidden=bench.hidden, data=x.tobytes())
    assert list(gate.status) == [OK, OK, NOT_FINITE, OK, OK, OK]
    assert list(gate.expert)[2 * bench.top_k : 3 * bench.top_k] == [0] * bench.top_k


def test_no_rows(served: Served) -> None:
    reply = served.client.forward(0, fp32_rows(served, 0))
    assert (reply.rows, reply.hidden, reply.data, list(reply.status)) == (0, served.bench.hidden, b"", [])
    reply = served.client.call("Gate", layer=0, rows=0, hidden=served.bench.hidden)
    assert (reply.rows, list(reply.expert)) == (0, [])


@pytest.mark.parametrize("method", ["Forward", "Gate"])
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"layer": 3}, "layer: expected 0 to 2, got 3"),
        ({"layer": 2**32 - 1}, "layer"),
        ({"hidden": 63}, "hidden: expected 64, got 63"),
        ({"hidden": 0}, "hidden"),
        ({"rows": 3}, "data: expected 768 bytes"),
        ({"rows": 1}, "data: expected 256 bytes"),
        ({"rows": MAX_ROWS + 1}, f"rows: expected 0 to {MAX_ROWS}"),
        ({"rows": 2**32 - 1}, "rows"),
        ({"data": b""}, "data"),
        ({"data": bytes(511)}, "data"),
    ],
)
def test_wrong_requests_are_named(served: Served, method: str, changes: dict[str, Any], names: str) -> None:
    fields = {"layer": 0, "rows": 2, "hidden": 64, "data": bytes(512), **changes}
    with pytest.raises(grpc.RpcError) as caught:
        served.client.call(method, **fields)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert names in str(caught.value.details())
    assert metadata_of(caught.value)[RETRYABLE_KEY] == "0"


def test_callers_at_once(served: Served) -> None:
    batches = [(n % served.bench.layers, fp32_rows(served, 1 + n % 5, n)) for n in range(40)]
    local = served.bench.local()
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda batch: served.client.forward(*batch), batches))
    for (layer, x), reply in zip(batches, replies, strict=True):
        assert np.array_equal(rows_in(reply), local.forward(layer, to_rows(x, served.bench.mode)).rows)


@pytest.fixture
def bench(tiny_mixtral: Path, tmp_path: Path) -> MoeBench:
    return MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path)


class Recording(LocalExecutor):
    """Notes what it is asked with; may answer with an error."""

    def __init__(self, bench: MoeBench, error: ColibriError | None = None) -> None:
        super().__init__(bench.run_units())
        self.asked: list[tuple[Deadline, int]] = []
        self.error = error

    def run(
        self, layer: int, x: Array, plan: LayerPlan, reading: Reading, deadline: Deadline, priority: int
    ) -> Answers:
        self.asked.append((deadline, priority))
        if self.error is not None:
            return Answers([self.error for _ in plan.dispatches])
        return super().run(layer, x, plan, reading, deadline, priority)


def test_deadline_and_priority_are_passed_on(bench: MoeBench) -> None:
    executor = Recording(bench)
    with serve(bench, bench.router(Directory(Membership(bench.spread(1), {})), executor)) as served:
        x = fp32_rows(served, 1)
        served.client.forward(0, x, timeout=7.0, priority=9)
        served.client.forward(0, x, timeout=None)
    (deadline, priority), (none, zero) = executor.asked
    remaining = deadline.remaining()
    assert remaining is not None
    assert 5.0 < remaining < 7.5  # grpc rounds up
    assert (none.remaining(), priority, zero) == (None, 9, 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WorkerLost("w4: stream lost", peer="w4"), grpc.StatusCode.UNAVAILABLE),
        (Busy("w4: full", peer="w4", retry_after_s=0.25), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_a_worker_s_failure_is_a_status_that_names_it(
    bench: MoeBench, error: ColibriError, code: grpc.StatusCode
) -> None:
    router = bench.router(Directory(Membership(bench.spread(1), {})), Recording(bench, error))
    with serve(bench, router) as served, pytest.raises(grpc.RpcError) as caught:
        served.client.forward(0, fp32_rows(served, 3))
    assert caught.value.code() is code
    assert "w4" in str(caught.value.details())
    metadata = metadata_of(caught.value)
    assert (metadata[PEER_KEY], metadata[RETRYABLE_KEY]) == ("w4", "1")
    assert metadata.get(RETRY_AFTER_KEY) == ("250" if isinstance(error, Busy) else None)


def test_the_caller_s_deadline_ends_the_wait_for_a_worker(bench: MoeBench) -> None:
    compute = bench.run_units()

    def slow(layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        time.sleep(2.0)
        return compute(layer, x, batch)

    with bench.worker("w0", run=slow) as worker:
        directory = Directory(membership_of(bench.spread(1), worker))
        with bench.remote(directory) as (router, executor), serve(bench, router) as served:
            executor.connect()
            start = time.monotonic()
            with pytest.raises(grpc.RpcError) as caught:
                served.client.forward(0, fp32_rows(served, 1), timeout=0.3)
            assert time.monotonic() - start < 30.0
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            until = time.monotonic() + 30
            while executor.times().failed_messages == 0 and time.monotonic() < until:
                time.sleep(0.01)
            # The router itself gave up, not only its caller.
            assert executor.times().failed_messages == 1
            assert time.monotonic() - start < 30.0
