"""The ports of a deployment as attackers find them: TLS, and callers who show who they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from colibri.coordinator.engine import EngineOptions
from colibri.grpc_options import channel_options, server_options
from colibri.kernels.api import ComputeMode
from colibri.placement import Directory
from colibri.router_service.servicer import RouterServicer, max_message_bytes
from colibri.rpc.places import Bounds
from colibri.rpc.server import build_server
from colibri.security.channel import ChannelSecurity, Metadata
from colibri.v1 import (
    expert_pb2,
    expert_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    router_pb2,
    router_pb2_grpc,
)
from tests.support.expert_servers import MoeBench, membership_of
from tests.support.pki import Pki, new_token
from tests.support.raw_http2 import RawHttp2
from tests.support.served import serve
from tests.support.tiny_engine import TinyModel

WAIT_S = 30.0
OPTIONS = EngineOptions(max_running=4, max_queued=8, kv_tokens=2048)
PORTS = ("serve", "router", "expert")
Call = Callable[[grpc.Channel, Metadata | None], object]


@dataclass(frozen=True, slots=True)
class Port:
    """One server. methods: calls that take no strangers; shown: of an honest caller; tokens: of two callers, where the
    port asks for them; certificate: whose an attacker shows to get a connection, where one is needed; known: of a
    caller who may call; call: a good one."""

    target: str
    ca: Path
    methods: tuple[str, ...]
    shown: ChannelSecurity
    tokens: tuple[str, str] = ("", "")
    certificate: tuple[Path, Path] | None = None
    known: tuple[Path, Path] | None = None
    call: Call = lambda channel, metadata: None

    def stranger(self, window: int = 65_535) -> RawHttp2:
        return RawHttp2(self.target, self.ca, self.certificate, window)

    def acquaintance(self, window: int = 65_535) -> RawHttp2:
        """Of somebody who may call, with `tokens[1]` or `known`."""
        return RawHttp2(self.target, self.ca, self.known, window)

    def honest(self, count: int = 1) -> None:
        """Good calls, on a connection of their own."""
        with self.shown.open(self.target, channel_options()) as channel:
            for _ in range(count):
                self.call(channel, self.shown.metadata())

    def health(self, count: int = 1) -> None:
        """Check and Watch, on a connection of their own."""
        with self.shown.open(self.target, channel_options()) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for _ in range(count):
                request = health_pb2.HealthCheckRequest()
                found = stub.Check(request, timeout=WAIT_S)
                assert found.status == health_pb2.HealthCheckResponse.SERVING
                watch = stub.Watch(request, timeout=WAIT_S)
                assert next(iter(watch)).status == health_pb2.HealthCheckResponse.SERVING
                watch.cancel()


@contextmanager
def port(
    kind: str, pki: Pki, tiny: TinyModel, mixtral: Path, folder: Path, bounds: Bounds | None = None
) -> Iterator[Port]:
    """A server of that kind on 127.0.0.1. bounds: those of a worker are as they are."""
    if kind == "expert":
        bench = MoeBench(mixtral, ComputeMode.FP32, folder)
        with bench.worker("w0", "tcp", security=pki.serves("worker", mutual=True)) as worker:
            yield Port(
                worker.target,
                pki.ca,
                tuple(
                    f"/colibri.v1.Expert/{name}"
                    for name in ("Handshake", "Status", "Load", "Attach", "Exchange")
                ),
                pki.shows("coordinator"),
                certificate=(pki.cert("client"), pki.key("client")),
                known=(pki.cert("router"), pki.key("router")),
                call=_status,
            )
        return
    tokens, own = new_token(folder, "alice")
    _, other = new_token(folder, "mallory")
    security = pki.serves(tokens=tokens)
    shown = pki.shows(token_file=own)
    secrets = (own.read_text().strip(), other.read_text().strip())
    with ExitStack() as stack:
        if kind == "serve":
            found = stack.enter_context(
                serve(
                    tiny, folder, OPTIONS, listen="127.0.0.1:0", security=security, shown=shown, bounds=bounds
                )
            )
            target, names, call = found.target, ("Generate", "ModelInfo", "Tokenize"), _generate
            service = "Generation"
        else:
            bench = MoeBench(mixtral, ComputeMode.FP32, folder)
            servers = stack.enter_context(bench.workers(1))
            router, _ = stack.enter_context(
                bench.remote(Directory(membership_of(bench.spread(1), *servers.values())))
            )
            servicer = RouterServicer(
                router,
                model_hash=bench.checkpoint.model_hash(),
                expert_numerics_id=bench.numerics.id,
                max_rows=64,
            )
            server = build_server(
                [servicer.as_service()],
                listen="127.0.0.1:0",
                options=server_options(max_message_bytes(bench.hidden, 64)),
                name="router",
                security=security,
                bounds=bounds,
            )
            server.start()
            server.set_serving(True)
            stack.callback(server.stop, 0.0)
            target, names, call = server.target, ("Forward", "Gate", "RouterInfo"), _info
            service = "Router"
        yield Port(
            target,
            pki.ca,
            tuple(f"/colibri.v1.{service}/{name}" for name in names),
            shown,
            secrets,
            call=call,
        )


def _generate(channel: grpc.Channel, metadata: Metadata | None) -> None:
    stub = generation_pb2_grpc.GenerationStub(channel)
    request = generation_pb2.GenerateRequest()
    request.token_ids.ids.extend((5, 9, 42))
    request.stopping.max_tokens = 4
    request.stopping.ignore_eos = True
    found = [
        each
        for reply in stub.Generate(request, timeout=WAIT_S, metadata=metadata)
        for each in reply.tokens.ids
    ]
    assert len(found) == 4


def _info(channel: grpc.Channel, metadata: Metadata | None) -> None:
    stub = router_pb2_grpc.RouterStub(channel)
    assert stub.RouterInfo(router_pb2.RouterInfoRequest(), timeout=WAIT_S, metadata=metadata).layers


def _status(channel: grpc.Channel, metadata: Metadata | None) -> None:
    stub = expert_pb2_grpc.ExpertStub(channel)
    assert stub.Status(expert_pb2.StatusRequest(), timeout=WAIT_S, metadata=metadata).worker == "w0"
