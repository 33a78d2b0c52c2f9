"""Peers that vanish, do not read, cancel by the hundred, or speak no gRPC: others do not notice."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator

import grpc
import pytest

from colibri.errors import Code
from colibri.v1 import generation_pb2 as gp
from tests.integration.bad_input import connections as c
from tests.integration.bad_input.live import WAIT_S, Live, live, open_fds
from tests.integration.bad_input.requests import GENERATE, request
from tests.support.clusters import eventually
from tests.support.growth import assert_flat

#: Of a server: gRPC keeps arenas for the most that was ever in flight at once.
GROWTH_BYTES = 16 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("live")) as found:
        yield found


def test_connections_that_speak_no_grpc_cost_nothing(server: Live) -> None:
    c.junk(server, 4)
    pid = server.serve.process.pid
    assert server.harm() == ""
    fds = open_fds(pid)

    def junk() -> None:
        c.junk(server, 30)
        assert server.harm() == ""
        eventually(lambda: open_fds(pid) <= fds + 4, WAIT_S, "their descriptors are closed")

    assert_flat(junk, server.resident, {"rss": GROWTH_BYTES})


def test_a_client_that_is_killed_takes_its_answer_along(server: Live) -> None:
    whole = c.seconds_of_all_choices(server)
    for number in range(3):
        c.killed_client(server, f"gone{number}")
        assert c.seconds_to_run_out(server, f"gone{number}") < whole / 3
    assert server.harm() == ""


def test_a_channel_closed_in_the_middle_takes_its_answer_along(server: Live) -> None:
    whole = c.seconds_of_all_choices(server)
    with grpc.insecure_channel(server.serve.target) as channel:
        call = channel.unary_stream(
            GENERATE, gp.GenerateRequest.SerializeToString, gp.GenerateReply.FromString
        )
        c.first_tokens(call(c.long_request("closed", n=16), timeout=WAIT_S))
    assert c.seconds_to_run_out(server, "closed") < whole / 3
    assert server.harm() == ""


def test_slow_readers_hold_up_nobody_and_lose_nothing(server: Live) -> None:
    expected = c.receipts(server.stub.Generate(c.long_request(), timeout=WAIT_S))
    assert len(expected) == 480
    with c.slow_readers(server, 8) as streams:
        for _ in range(5):
            assert server.harm() == ""
        time.sleep(0.5)
        assert server.harm() == ""
        assert [c.receipts(stream) for stream in streams] == [expected] * 8


def test_cancelled_streams_leave_nothing(server: Live) -> None:
    c.cancelled(server, 300, at_once=48)
    assert c.until_idle(server) < WAIT_S
    pid = server.serve.process.pid

    def cancelled() -> None:
        c.cancelled(server, 2000)
        assert c.until_idle(server) < WAIT_S
        assert server.harm() == ""

    def held() -> dict[str, int]:
        return server.resident() | {"fds": open_fds(pid), "threads": c.threads_of(pid)}

    assert_flat(cancelled, held, {"rss": GROWTH_BYTES, "fds": 4, "threads": 4})


def test_a_request_id_in_use_is_refused(server: Live) -> None:
    stream = server.stub.Generate(c.long_request("twice"), timeout=WAIT_S)
    c.first_tokens(stream)
    reply = server.call(GENERATE, request(request_id="twice").SerializeToString())
    assert (reply.code, reply.message) == (Code.ALREADY_EXISTS, "request_id: 'twice' is still running")
    stream.cancel()
    c.seconds_to_run_out(server, "twice")
    assert server.call(GENERATE, request(request_id="twice").SerializeToString()).code is None


def test_a_compressed_bomb_is_refused_by_its_real_size(server: Live) -> None:
    bomb = gp.GenerateRequest(text="a" * (48 << 20)).SerializeToString()
    assert len(gzip.compress(bomb)) < 1 << 18

    def refused() -> None:
        for _ in range(3):
            reply = server.call(GENERATE, bomb, compression=grpc.Compression.Gzip)
            assert reply.code is Code.RESOURCE_EXHAUSTED
            assert server.harm() == ""

    assert_flat(refused, server.resident, {"rss": GROWTH_BYTES})


def test_more_calls_than_the_server_takes_are_refused_with_advice(server: Live) -> None:
    streams = [server.stub.Generate(c.long_request(), timeout=WAIT_S) for _ in range(130)]
    codes: dict[str, int] = {}
    for stream in streams:
        try:
            next(stream)
            codes["OK"] = codes.get("OK", 0) + 1
        except grpc.RpcError as error:
            metadata = {item.key: item.value for item in error.trailing_metadata()}
            assert metadata["colibri-retryable"] == "1"
            assert int(metadata["colibri-retry-after-ms"]) > 0
            codes[error.code().name] = codes.get(error.code().name, 0) + 1
    for stream in streams:
        stream.cancel()
    assert set(codes) == {"OK", "RESOURCE_EXHAUSTED"}
    assert c.until_idle(server) < WAIT_S
    assert server.harm() == ""
