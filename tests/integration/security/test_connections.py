"""Connections that cannot be: each is told what is wrong with it, typed, at once, by every client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from colibri.bench.load.targets.colibri_grpc import GrpcTarget
from colibri.client import AsyncClient, ChannelSecurity, Client, Retry
from colibri.client.operator import Operator
from colibri.coordinator.engine import EngineOptions
from colibri.errors import ColibriError, TlsError, WorkerLost
from colibri.grpc_options import HANDSHAKE_TIMEOUT_MS, server_options
from colibri.rpc.server import build_server
from colibri.security.server import ServerSecurity
from tests.support.pki import Pki
from tests.support.served import Served, serve
from tests.support.tiny_engine import WAIT_S, TinyModel

#: A reason is known at once; this bounds the slowest of machines.
BOUND_S = 6.0
PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"
OPTIONS = EngineOptions(kv_tokens=4096)


def by_client(target: str, security: ChannelSecurity) -> ColibriError:
    with pytest.raises(ColibriError) as caught, Client(target, security=security) as client:
        client.model_info()
    return caught.value


def by_stream(target: str, security: ChannelSecurity) -> ColibriError:
    """With retries, which must not go on."""
    with pytest.raises(ColibriError) as caught, Client(target, security=security, retry=Retry()) as client:
        client.generate([5, 6]).answer()
    return caught.value


def by_operator(target: str, security: ChannelSecurity) -> ColibriError:
    with pytest.raises(ColibriError) as caught, Operator(target, security=security) as operator:
        operator.status()
    return caught.value


def by_async_client(target: str, security: ChannelSecurity) -> ColibriError:
    async def ask() -> None:
        async with AsyncClient(target, security=security, retry=Retry()) as client:
            await client.generate([5, 6]).answer()

    with pytest.raises(ColibriError) as caught:
        asyncio.run(ask())
    return caught.value


def by_load(target: str, security: ChannelSecurity) -> ColibriError:
    async def ask() -> None:
        load = GrpcTarget(target, in_flight=1, security=security)
        try:
            await load.open(2.0)
        finally:
            await load.close()

    with pytest.raises(ColibriError) as caught:
        asyncio.run(ask())
    return caught.value


CLIENTS = (by_client, by_stream, by_operator, by_async_client, by_load)

#: server, client, what is said.
CASES: dict[str, tuple[str, Callable[[Pki], ChannelSecurity], str]] = {
    "plain client": (
        "tls",
        lambda pki: ChannelSecurity(),
        "the server speaks TLS, this client does not: give its CA with --tls-ca",
    ),
    "plain server": (
        "plain",
        lambda pki: pki.shows(),
        "this client speaks TLS (--tls-ca), the server does not",
    ),
    "unknown CA of the server": (
        "tls",
        lambda pki: pki.shows(ca="other"),
        "the server's certificate is of no CA in --tls-ca",
    ),
    "no certificate": (
        "mutual",
        lambda pki: pki.shows(),
        "the server ended the TLS handshake: it demands a client certificate (--tls-cert, --tls-key)",
    ),
    "unknown CA of the client": (
        "mutual",
        lambda pki: pki.shows("other-client"),
        "the server ended the TLS handshake: it does not take the certificate in --tls-cert, which is of no CA in"
        " --tls-ca either",
    ),
    "certificate of the wrong name": (
        "tls",
        lambda pki: ChannelSecurity(tls_ca=pki.ca, tls_name="other.example"),
        "the server's certificate is not for other.example: --tls-name says which name it must be for",
    ),
}


@pytest.fixture(scope="module")
def servers(
    pki: Pki, tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Served]]:
    """Three of one model, on loopback addresses; their own clients are right ones."""
    wanted = {
        "plain": (ServerSecurity(), ChannelSecurity()),
        "tls": (pki.serves(), pki.shows()),
        "mutual": (pki.serves(mutual=True), pki.shows("client")),
    }
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(
                serve(
                    tiny,
                    tmp_path_factory.mktemp(name),
                    OPTIONS,
                    listen="127.0.0.1:0",
                    security=security,
                    shown=shown,
                )
            )
            for name, (security, shown) in wanted.items()
        }


@pytest.mark.parametrize("by", CLIENTS, ids=lambda by: by.__name__)
@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said(
    case: str, by: Callable[..., ColibriError], pki: Pki, servers: dict[str, Served]
) -> None:
    server, client, text = CASES[case]
    served = servers[server]
    begun = time.monotonic()
    error = by(served.target, client(pki))
    took = time.monotonic() - begun
    # The right client is answered all the same.
    assert served.client.model_info(timeout_s=WAIT_S).name == "tiny"
    assert isinstance(error, TlsError), repr(error)
    assert error.message == f"{served.target}: {text}"
    assert not error.retryable
    assert took < BOUND_S


@pytest.mark.parametrize("case", CASES)
def test_the_page_tells_it(case: str) -> None:
    assert f"`{CASES[case][2]}`" in PAGE.read_text()


def test_expired_certificates_are_refused_where_they_are_read(pki: Pki) -> None:
    expected = r"--tls-cert: expected a certificate that is valid now, got .*, which expired at 20"
    with pytest.raises(ColibriError, match=expected):
        build_server([], listen="127.0.0.1:0", security=pki.serves("expired-worker"))
    with pytest.raises(ColibriError, match=expected):
        Client("127.0.0.1:1", security=pki.shows("expired-client"))


def test_a_server_whose_certificate_has_expired_meanwhile(pki: Pki) -> None:
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        pair = (pki.key("expired-worker").read_bytes(), pki.cert("expired-worker").read_bytes())
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        server.start()
        try:
            error = by_client(f"127.0.0.1:{port}", pki.shows())
        finally:
            server.stop(0).wait(WAIT_S)
    assert isinstance(error, TlsError)
    assert error.message == f"127.0.0.1:{port}: the server's certificate has expired"
    assert "`the server's certificate has expired`" in PAGE.read_text()


def test_a_certificate_is_for_servers_or_for_clients(pki: Pki) -> None:
    with pytest.raises(
        ColibriError, match=r"--tls-cert: expected a certificate for servers, got .*, for clients only"
    ):
        build_server([], listen="127.0.0.1:0", security=pki.serves("client"))
    with pytest.raises(
        ColibriError, match=r"--tls-cert: expected a certificate for clients, got .*, for servers only"
    ):
        Client("127.0.0.1:1", security=pki.shows("worker"))


def test_a_certificate_for_another_address(pki: Pki) -> None:
    """127.0.0.2 is this machine, too, but no name in the certificate."""
    server = build_server([], listen="127.0.0.2:0", security=pki.serves())
    server.start()
    try:
        error = by_client(server.target, pki.shows())
    finally:
        server.stop(0)
    assert error.message.endswith(
        "the server's certificate is not for 127.0.0.2: --tls-name says which name it must be for"
    )


def test_nobody_there_is_no_matter_of_tls(pki: Pki) -> None:
    error = by_client("127.0.0.1:1", pki.shows())
    assert isinstance(error, WorkerLost)
    assert error.retryable


def test_a_server_that_says_nothing_holds_up_nobody(pki: Pki) -> None:
    """It takes the connection and then hangs: the reason is not known, and is not waited for."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        with pytest.raises(ColibriError), Client(target, security=pki.shows()) as client:
            client.wait_ready(1.0)
        assert time.monotonic() - begun < BOUND_S


@pytest.mark.parametrize("protected", [True, False])
def test_whoever_says_nothing_is_sent_away(protected: bool, pki: Pki) -> None:
    """Connections that are opened and left so would fill a server up."""
    key = "grpc.server_handshake_timeout_ms"
    assert dict(server_options())[key] == HANDSHAKE_TIMEOUT_MS <= 10_000
    options = [(name, 500 if name == key else value) for name, value in server_options()]
    server = build_server(
        [], listen="127.0.0.1:0", options=options, security=pki.serves() if protected else None
    )
    server.start()
    try:
        host, _, port = server.target.rpartition(":")
        with socket.create_connection((host, int(port)), WAIT_S) as mute:
            while mute.recv(4096):
                pass  # a plain server says first what it can do
    finally:
        server.stop(0)


def test_health_answers_whoever_has_a_connection(pki: Pki, servers: dict[str, Served]) -> None:
    credentials = grpc.ssl_channel_credentials(pki.ca.read_bytes())
    with grpc.secure_channel(servers["tls"].target, credentials) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(service="colibri.v1.Generation"), timeout=WAIT_S)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_answers_are_those_without_tls(servers: dict[str, Served]) -> None:
    answers = [
        served.client.generate([5, 9, 42], max_tokens=12, ignore_eos=True).answer()
        for served in servers.values()
    ]
    assert len({tuple(answer.receipts) for answer in answers}) == 1


def test_behind_a_unix_socket_the_name_is_localhost(pki: Pki, tiny: TinyModel, tmp_path: Path) -> None:
    with serve(tiny, tmp_path, OPTIONS, security=pki.serves(), shown=pki.shows()) as served:
        assert served.client.model_info().name == "tiny"
        error = by_client(served.target, ChannelSecurity())
    assert error.message.endswith(CASES["plain client"][2])
