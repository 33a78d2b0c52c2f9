"""The first words with a worker: what must be equal is compared, and every attempt has a bound."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from colibri.deadline import Deadline
from colibri.errors import (
    ColibriError,
    DeadlineExpired,
    NumericsMismatch,
    WorkerLost,
)
from colibri.kernels.api import ComputeMode
from colibri.placement import Directory, Membership, WorkerEndpoint
from colibri.router_service.policy import FailoverPolicy
from colibri.rpc.server import Service, build_server
from colibri.v1 import expert_pb2, expert_pb2_grpc
from tests.support.expert_servers import MoeBench, membership_of

OFF = FailoverPolicy(failover=False, hedge=False)


@pytest.fixture
def bench(tiny_mixtral: Path, tmp_path: Path) -> MoeBench:
    return MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path)


@pytest.mark.parametrize("field", ["model_hash", "expert_numerics_id"])
def test_a_mismatch_is_refused_with_both_values(bench: MoeBench, field: str) -> None:
    x = bench.rows(np.random.default_rng(14), 2)
    with bench.workers(1) as servers:
        directory = Directory(membership_of(bench.spread(1), *servers.values()))
        mine = bench.identity()
        own = getattr(mine, field)
        if field == "model_hash":
            other = replace(mine, model_hash="another")
        else:
            other = replace(mine, expert_numerics_id="another")
        with bench.remote(directory, identity=other) as (router, executor):
            errors = [executor.connect()["w0"], *router.forward(0, x).failed.values()]
            assert len(errors) == 3
            for error in errors:
                assert isinstance(error, NumericsMismatch)
                assert (error.peer, error.retryable) == ("w0", False)
                assert "another" in error.message
                assert own in error.message


def test_another_life_at_the_address(bench: MoeBench) -> None:
    x = bench.rows(np.random.default_rng(15), 2)
    with bench.worker("w0", incarnation=7) as server:
        endpoint = WorkerEndpoint("w0", 6, server.target)
        directory = Directory(Membership(bench.spread(1), {"w0": endpoint}))
        with bench.remote(directory, policy=OFF) as (router, _):
            for error in router.forward(0, x).failed.values():
                assert isinstance(error, WorkerLost)
                assert "expected w0, incarnation 6" in error.message
                assert "got w0, incarnation 7" in error.message


class Sloppy(expert_pb2_grpc.ExpertServicer):
    """A worker that shakes any hand and says what it is told to."""

    def __init__(self, reply: expert_pb2.HandshakeReply) -> None:
        self._reply = reply

    def Handshake(
        self, request: expert_pb2.HandshakeRequest, context: grpc.ServicerContext
    ) -> expert_pb2.HandshakeReply:
        return self._reply


@pytest.mark.parametrize(
    ("changes", "kind", "expected"),
    [
        ({"model_hash": "mine"}, NumericsMismatch, "model_hash: expected '{model_hash}'"),
        ({"expert_numerics_id": "mine"}, NumericsMismatch, "numerics_id: expected '{expert_numerics_id}'"),
        ({"pack_hash": "mine"}, NumericsMismatch, "pack_hash: expected ''"),
        ({"protocol": 9}, NumericsMismatch, "protocol: expected 1 to 1 (router), got 9 (worker)"),
        ({"worker": "w1"}, WorkerLost, "got w1, incarnation 1"),
        ({"incarnation": 2}, WorkerLost, "got w0, incarnation 2"),
    ],
)
def test_the_router_compares_for_itself(
    bench: MoeBench, changes: dict[str, Any], kind: type[ColibriError], expected: str
) -> None:
    mine = bench.identity()
    reply = expert_pb2.HandshakeReply(
        protocol=1,
        worker="w0",
        incarnation=1,
        model_hash=mine.model_hash,
        expert_numerics_id=mine.expert_numerics_id,
        max_rows=8,
    )
    reply.MergeFrom(expert_pb2.HandshakeReply(**changes))
    servicer = Sloppy(reply)  # its other methods answer UNIMPLEMENTED
    service = Service("colibri.v1.Expert", partial(expert_pb2_grpc.add_ExpertServicer_to_server, servicer))
    server = build_server([service], listen=f"unix:{bench.folder}/sloppy")
    server.start()
    try:
        endpoint = WorkerEndpoint("w0", 1, server.target)
        directory = Directory(Membership(bench.spread(1), {"w0": endpoint}))
        with bench.remote(directory) as (_, executor):
            error = executor.connect()["w0"]
            assert isinstance(error, kind)
            assert error.peer == "w0"
            assert expected.format(**asdict(mine)) in error.message
    finally:
        server.stop(0)


def test_no_common_protocol(bench: MoeBench) -> None:
    with bench.workers(1) as servers:
        directory = Directory(membership_of(bench.spread(1), *servers.values()))
        other = replace(bench.identity(), protocol_min=2, protocol_max=3)
        with bench.remote(directory, identity=other) as (_, executor):
            error = executor.connect()["w0"]
            assert isinstance(error, NumericsMismatch)
            assert "2 to 3" in error.message


@pytest.fixture
def deaf() -> Iterator[str]:
    """An address where connections are accepted and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_nobody_listens_or_nobody_answers(bench: MoeBench, deaf: str) -> None:
    x = bench.rows(np.random.default_rng(16), 2)
    for target, within in ((f"unix:{bench.folder}/nobody", 30.0), ("127.0.0.1:1", 30.0), (deaf, 30.0)):
        directory = Directory(Membership(bench.spread(1), {"w0": WorkerEndpoint("w0", 1, target)}))
        with bench.remote(directory, policy=OFF, connect_s=4.0) as (router, _):
            start = time.monotonic()
            result = router.forward(0, x)
            assert time.monotonic() - start < within
            assert sorted(result.failed) == [0, 1]
            for error in result.failed.values():
                assert isinstance(error, WorkerLost)
                assert (error.peer, error.retryable) == ("w0", True)
                assert "w0" in error.message
            start = time.monotonic()
            assert len(router.forward(0, x).failed) == 2  # still refused: not tried again yet
            assert time.monotonic() - start < 3.5


def test_the_caller_s_deadline_bounds_a_connection(bench: MoeBench, deaf: str) -> None:
    x = bench.rows(np.random.default_rng(16), 1)
    directory = Directory(Membership(bench.spread(1), {}))
    with bench.remote(directory, connect_s=2.0) as (router, _):
        directory.publish(Membership(bench.spread(1), {"w0": WorkerEndpoint("w0", 1, deaf)}))
        start = time.monotonic()
        result = router.forward(0, x, Deadline.after(0.3))
        assert 0.2 < time.monotonic() - start < 30.0
        assert isinstance(result.failed[0], DeadlineExpired)
        assert result.failed[0].peer == "w0"
