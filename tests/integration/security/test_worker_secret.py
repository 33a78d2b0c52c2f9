"""A deployment's secret on the workers' plane: with it the same bits, without it nothing but health."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from colibri.cluster.workers.expert_calls import ask_status
from colibri.errors import ColibriError, Unauthenticated
from colibri.grpc_options import channel_options
from colibri.kernels.api import ComputeMode
from colibri.placement import Directory
from colibri.rpc.status import from_rpc_error
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.security.plane_secret import PlaneSecret
from colibri.security.server import ServerSecurity
from colibri.transport.host import host_id
from colibri.transport.link import LinkKind
from colibri.transport.shared_memory import LAYOUT
from colibri.v1 import expert_pb2, expert_pb2_grpc, faults_pb2, faults_pb2_grpc
from tests.support.expert_servers import MoeBench, membership_of
from tests.support.worker_client import WAIT_S

SECRET = PlaneSecret.draw()
SHOWN = ChannelSecurity(secret=SECRET)
DEMANDS = ServerSecurity(secret=SECRET)


@pytest.fixture
def bench(tiny_mixtral: Path, tmp_path: Path) -> MoeBench:
    return MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path)


@pytest.mark.parametrize("transport", ["tcp", "unix"])
@pytest.mark.parametrize("kind", [LinkKind.GRPC, LinkKind.SHARED_MEMORY])
def test_the_bits_are_those_of_one_process(bench: MoeBench, transport: str, kind: LinkKind) -> None:
    x = bench.rows(np.random.default_rng(3), 33)
    expected = bench.local().forward(1, x).rows
    with (
        bench.worker("w0", transport, security=DEMANDS) as first,
        bench.worker("w1", transport, security=DEMANDS) as second,
    ):
        directory = Directory(membership_of(bench.spread(2), first, second, security=SHOWN))
        with bench.remote(directory, link=kind) as (router, executor):
            assert not executor.connect()
            assert np.array_equal(router.forward(1, x).rows, expected)
            assert {health.link for health in executor.workers().values()} == {kind.value}


def calls(channel: grpc.Channel) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every call of a worker's plane."""
    expert: expert_pb2_grpc.ExpertStub = expert_pb2_grpc.ExpertStub(channel)
    faults: faults_pb2_grpc.FaultsStub = faults_pb2_grpc.FaultsStub(channel)
    frames: Any = channel.stream_stream("/colibri.v1.Expert/Exchange", None, None)
    everything = [expert_pb2.ExpertId(layer=0, expert=expert) for expert in range(8)]
    attach = expert_pb2.AttachRequest(host=host_id(), layout=LAYOUT)
    yield "Handshake", lambda: expert.Handshake(expert_pb2.HandshakeRequest(), timeout=WAIT_S)
    yield "Status", lambda: expert.Status(expert_pb2.StatusRequest(experts=True), timeout=WAIT_S)
    yield "Retire", lambda: expert.Retire(expert_pb2.RetireRequest(experts=everything), timeout=WAIT_S)
    yield "Load", lambda: list(expert.Load(expert_pb2.LoadRequest(epoch=1), timeout=WAIT_S))
    yield "Attach", lambda: next(expert.Attach(attach, timeout=WAIT_S))
    yield "Exchange", lambda: list(frames(iter([b"x"]), timeout=WAIT_S))
    yield "SetFaults", lambda: faults.SetFaults(faults_pb2.SetFaultsRequest(), timeout=WAIT_S)
    reflect: Any = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    yield "reflection", lambda: list(reflect(iter([b""]), timeout=WAIT_S))


@pytest.mark.parametrize("transport", ["tcp", "unix"])
@pytest.mark.parametrize(
    ("shown", "got"),
    [(PLAIN, "none"), (ChannelSecurity(secret=PlaneSecret.draw()), "another one")],
)
def test_without_it_there_is_health_alone(
    bench: MoeBench, transport: str, shown: ChannelSecurity, got: str
) -> None:
    with (
        bench.worker("w0", transport, security=DEMANDS, allow_faults=True) as server,
        shown.open(server.target, channel_options()) as channel,
    ):
        for name, call in calls(channel):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            error = from_rpc_error(caught.value, "w0")
            assert isinstance(error, Unauthenticated), (name, error)
            assert error.message == (
                "authorization: expected the secret of this worker's deployment (--worker-secret-file), "
                f"got {got}"
            )
        held = ask_status(server.target, "w0", WAIT_S, security=SHOWN, experts=True)
        assert len(held.held) == len(bench.keys)
        assert held.requests_done == 0
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status == 1


def test_a_router_without_it_says_what_it_lacks(bench: MoeBench) -> None:
    with bench.worker("w0", "tcp", security=DEMANDS) as server:
        directory = Directory(membership_of(bench.spread(1), server))
        with bench.remote(directory) as (_, executor):
            error = executor.connect()["w0"]
        assert isinstance(error, Unauthenticated)
        with pytest.raises(ColibriError, match="--worker-secret-file"):
            ask_status(server.target, "w0", WAIT_S, wait_for_ready=True)
