"""The server that all services share, over real sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from colibri.errors import Busy, ColibriError, ConfigError, InvalidInput, WorkerLost
from colibri.grpc_options import channel_options, server_options
from colibri.rpc.server import RpcServer, Service, build_server
from colibri.rpc.status import from_rpc_error
from colibri.v1 import generation_pb2, generation_pb2_grpc

NAME = "colibri.v1.Generation"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Servicer(generation_pb2_grpc.GenerationServicer):
    """Does what the request's id says."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def Generate(
        self, request: generation_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[generation_pb2.GenerateReply]:
        accepted = generation_pb2.Accepted(request_id=request.request_id)
        yield generation_pb2.GenerateReply(accepted=accepted)
        if request.request_id == "block":
            self.release.wait(20)
        elif request.request_id == "lost":
            raise WorkerLost("worker w1 ended", peer="w1", retry_after_s=0.5)
        elif request.request_id == "bug":
            raise ZeroDivisionError("secret /path")
        elif request.request_id == "long":
            raise InvalidInput("x" * 100, "\U0001f426" * 2000, "\ud800\n\x1b[2J")

    def Abort(
        self, request: generation_pb2.AbortRequest, context: grpc.ServicerContext
    ) -> generation_pb2.AbortReply:
        raise InvalidInput("request_id", "another", request.request_id)

    def ModelInfo(
        self, request: generation_pb2.ModelInfoRequest, context: grpc.ServicerContext
    ) -> generation_pb2.ModelInfoReply:
        return generation_pb2.ModelInfoReply(name="tiny")


class Bench:
    def __init__(self, server: RpcServer, servicer: Servicer, channel: grpc.Channel) -> None:
        self.server = server
        self.servicer = servicer
        self.channel = channel
        self.stub: generation_pb2_grpc.GenerationStub = generation_pb2_grpc.GenerationStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)

    def health(self, service: str = "") -> int:
        reply = self._health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
        return int(reply.status)

    def watch(self) -> Iterator[health_pb2.HealthCheckResponse]:
        watch: Iterator[health_pb2.HealthCheckResponse] = self._health.Watch(
            health_pb2.HealthCheckRequest(service=NAME), timeout=20
        )
        return watch

    def generate(self, request_id: str) -> Iterator[generation_pb2.GenerateReply]:
        return iter(self.stub.Generate(generation_pb2.GenerateRequest(request_id=request_id), timeout=20))


@contextmanager
def serving(listen: str, max_calls: int = 8) -> Iterator[Bench]:
    servicer = Servicer()
    service = Service(NAME, lambda s: generation_pb2_grpc.add_GenerationServicer_to_server(servicer, s))
    server = build_server([service], listen=listen, max_calls=max_calls, name="bench")
    server.start()
    try:
        with grpc.insecure_channel(server.target, options=channel_options()) as channel:
            yield Bench(server, servicer, channel)
    finally:
        servicer.release.set()
        server.stop(0.0)


@pytest.fixture(params=["unix", "tcp"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with serving(f"unix:{tmp_path}/s.sock" if request.param == "unix" else "127.0.0.1:0") as bench:
        yield bench


def failure(call: Iterator[object]) -> ColibriError:
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    return from_rpc_error(caught.value, "bench")


def test_health_follows_readiness(bench: Bench) -> None:
    assert bench.health() == bench.health(NAME) == NOT_SERVING
    watch = bench.watch()
    assert next(watch).status == NOT_SERVING
    bench.server.set_serving(True)
    assert bench.health() == bench.health(NAME) == SERVING
    assert next(watch).status == SERVING
    with pytest.raises(grpc.RpcError) as caught:
        bench.health("colibri.v1.Nothing")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_typed_errors_become_statuses(bench: Bench) -> None:
    lost = failure(bench.generate("lost"))
    assert isinstance(lost, WorkerLost)
    assert (lost.message, lost.peer, lost.retry_after_s) == ("worker w1 ended", "w1", 0.5)
    with pytest.raises(grpc.RpcError) as caught:
        bench.stub.Abort(generation_pb2.AbortRequest(request_id="r"), timeout=5)
    wrong = from_rpc_error(caught.value, "bench")
    assert isinstance(wrong, InvalidInput)
    assert (wrong.message, wrong.field) == ("request_id: expected another, got r", "request_id")


def test_bytes_that_are_no_message_are_an_error_of_the_caller(bench: Bench) -> None:
    for method in ("Generate", "Abort"):
        multi = bench.channel.unary_stream if method == "Generate" else bench.channel.unary_unary
        call: Any = multi(f"/{NAME}/{method}", request_serializer=None, response_deserializer=None)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(b"\x0a\xff\xff", timeout=5))
        wrong = from_rpc_error(caught.value, "bench")
        assert isinstance(wrong, InvalidInput)
        assert wrong.message == f"request: expected a colibri.v1.{method}Request, got 3 bytes that are none"


def test_a_long_message_arrives_cut_and_on_one_line(bench: Bench) -> None:
    error = failure(bench.generate("long"))
    assert isinstance(error, InvalidInput)
    assert error.message.startswith("x" * 100 + ": expected \U0001f426\U0001f426")
    assert 900 < len(error.message.encode()) <= 1000


def test_a_bug_tells_its_kind_and_nothing_else(bench: Bench) -> None:
    error = failure(bench.generate("bug"))
    assert (error.message, error.retryable) == ("bench: internal error (ZeroDivisionError)", False)
    assert bench.stub.ModelInfo(generation_pb2.ModelInfoRequest(), timeout=5).name == "tiny"


def test_reflection_shows_every_service(bench: Bench) -> None:
    database = ProtoReflectionDescriptorDatabase(bench.channel)
    assert {NAME, "grpc.health.v1.Health"} <= set(database.get_services())
    service = DescriptorPool(database).FindServiceByName(NAME)
    assert [method.name for method in service.methods] == [
        "Generate",
        "Abort",
        "ModelInfo",
        "Tokenize",
        "Detokenize",
    ]


def test_calls_beyond_the_limit_are_refused_and_health_still_answers(tmp_path: Path) -> None:
    with serving(f"unix:{tmp_path}/s.sock", max_calls=3) as bench:
        blocked = [bench.generate("block") for _ in range(3)]
        for call in blocked:
            next(call)
        for _ in range(20):
            error = failure(bench.generate("block"))
            assert isinstance(error, Busy)
            assert error.message == "bench: 3 calls run already, the limit of this server"
            assert (error.peer, error.retryable, error.retry_after_s) == ("bench", True, 0.1)
            assert bench.health() == NOT_SERVING
        bench.servicer.release.set()
        for call in blocked:
            assert list(call) == []
        until = time.monotonic() + 5
        while time.monotonic() < until:
            try:
                assert bench.stub.ModelInfo(generation_pb2.ModelInfoRequest(), timeout=5).name == "tiny"
                break
            except grpc.RpcError:
                time.sleep(0.01)
        else:
            pytest.fail("the calls that ended were never counted as ended")


def test_a_large_message_is_refused_and_the_connection_lives(bench: Bench) -> None:
    request = generation_pb2.GenerateRequest(text="x" * (5 << 20))
    with pytest.raises(grpc.RpcError) as caught:
        list(bench.stub.Generate(request, timeout=10))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert bench.stub.ModelInfo(generation_pb2.ModelInfoRequest(), timeout=5).name == "tiny"


def test_stop_gives_running_calls_their_grace(bench: Bench) -> None:
    bench.server.set_serving(True)
    call = bench.generate("block")
    next(call)
    threading.Timer(0.2, bench.servicer.release.set).start()
    assert bench.server.stop(10.0)
    assert list(call) == []


def test_stop_cuts_off_what_takes_longer(bench: Bench) -> None:
    call = bench.generate("block")
    next(call)
    begin = time.monotonic()
    bench.server.stop(0.1)
    assert time.monotonic() - begin < 30
    with pytest.raises(grpc.RpcError):
        list(call)


def test_an_address_in_use_is_an_error(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"^listen: expected"):
        build_server([], listen=bench.server.target)
    assert bench.health() == NOT_SERVING


@pytest.mark.parametrize(("listen", "max_calls"), [("nowhere", 1), ("127.0.0.1:0", 0)])
def test_wrong_options(listen: str, max_calls: int) -> None:
    with pytest.raises(ConfigError):
        build_server([], listen=listen, max_calls=max_calls)


def test_options_bound_messages_on_both_ends() -> None:
    for options in (dict(channel_options(12345)), dict(server_options(12345))):
        assert options["grpc.max_receive_message_length"] == 12345
        assert options["grpc.max_send_message_length"] == 12345
    assert dict(server_options())["grpc.so_reuseport"] == 0
    assert dict(channel_options())["grpc.enable_http_proxy"] == 0
