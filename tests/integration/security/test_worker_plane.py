"""mTLS between routers and workers: the same bits, over gRPC and over shared memory, and nobody else gets in."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from colibri.cluster.workers.attached import AttachedWorkers, AttachOptions
from colibri.cluster.workers.expert_calls import ask_status
from colibri.errors import ColibriError, PermissionDenied, TlsError
from colibri.expert_service.assembly import WorkerServer
from colibri.grpc_options import channel_options
from colibri.kernels.api import ComputeMode
from colibri.placement import Directory, Placement, spread
from colibri.rpc.status import from_rpc_error
from colibri.security.authority import Authority
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.security.roles import WORKER_NAME, Role
from colibri.security.server import ServerSecurity
from colibri.security.server_certificates import LOOK_S
from colibri.transport.host import host_id
from colibri.transport.link import LinkKind
from colibri.transport.shared_memory import LAYOUT
from colibri.v1 import expert_pb2, expert_pb2_grpc
from tests.support.expert_servers import MoeBench, membership_of
from tests.support.pki import Pki
from tests.support.worker_client import WAIT_S

PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"


@pytest.fixture
def bench(tiny_mixtral: Path, tmp_path: Path) -> MoeBench:
    return MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path)


@contextmanager
def workers(
    bench: MoeBench, count: int, transport: str, security: ServerSecurity
) -> Iterator[list[WorkerServer]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(bench.worker(f"w{index}", transport, security=security))
            for index in range(count)
        ]


@contextmanager
def stub(worker: WorkerServer, security: ChannelSecurity) -> Iterator[expert_pb2_grpc.ExpertStub]:
    with security.open(worker.target, channel_options()) as channel:
        yield expert_pb2_grpc.ExpertStub(channel)


def refusal(call: Any) -> ColibriError:
    def whole() -> None:
        result = call()
        if not hasattr(result, "ByteSize"):
            list(result)

    with pytest.raises(grpc.RpcError) as caught:
        whole()
    return from_rpc_error(caught.value, "w0")


@pytest.mark.parametrize("transport", ["tcp", "unix"])
@pytest.mark.parametrize("kind", [LinkKind.GRPC, LinkKind.SHARED_MEMORY])
@pytest.mark.parametrize("role", ["coordinator", "router"])
def test_the_bits_are_those_of_one_process(
    bench: MoeBench, pki: Pki, transport: str, kind: LinkKind, role: str
) -> None:
    x = bench.rows(np.random.default_rng(3), 33)
    expected = bench.local().forward(1, x).rows
    with workers(bench, 2, transport, pki.serves("worker", mutual=True)) as servers:
        directory = Directory(membership_of(bench.spread(2), *servers, security=pki.shows(role)))
        with bench.remote(directory, link=kind) as (router, executor):
            assert not executor.connect()
            assert np.array_equal(router.forward(1, x).rows, expected)
            assert {health.link for health in executor.workers().values()} == {kind.value}


def test_a_worker_takes_coordinators_and_routers_only(bench: MoeBench, pki: Pki) -> None:
    with bench.worker("w0", "tcp", security=pki.serves("worker", mutual=True)) as server:
        for role in ("client", "operator"):
            text = f"colibri.v1.Expert: expected a certificate with the role coordinator or router, got one with {role}"
            with stub(server, pki.shows(role)) as expert:
                errors = [
                    refusal(lambda expert=expert: expert.Status(expert_pb2.StatusRequest(), timeout=WAIT_S)),
                    refusal(
                        lambda expert=expert: expert.Handshake(expert_pb2.HandshakeRequest(), timeout=WAIT_S)
                    ),
                    refusal(
                        lambda expert=expert: expert.Load(expert_pb2.LoadRequest(epoch=1), timeout=WAIT_S)
                    ),
                    # The fast path is not offered either.
                    refusal(
                        lambda expert=expert: expert.Attach(
                            expert_pb2.AttachRequest(host=host_id(), layout=LAYOUT), timeout=WAIT_S
                        )
                    ),
                    refusal(lambda expert=expert: expert.Exchange(iter(()), timeout=WAIT_S)),
                ]
            for error in errors:
                assert isinstance(error, PermissionDenied)
                assert error.message == text
            if role == "client":
                assert f"`{text}`" in PAGE.read_text()


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (lambda pki: PLAIN, None),
        (lambda pki: pki.shows(), "it demands a client certificate"),
        (lambda pki: pki.shows("other-client"), "it does not take the certificate in --tls-cert"),
        (lambda pki: pki.shows("expired-client"), "the certificate in --tls-cert expired at 20"),
        (lambda pki: pki.shows("worker"), "the certificate in --tls-cert is not for clients"),
        (
            lambda pki: pki.shows("coordinator", ca="other"),
            "the server's certificate is of no CA in --tls-ca",
        ),
    ],
)
def test_strangers_get_no_connection(bench: MoeBench, pki: Pki, shown: Any, reason: str | None) -> None:
    with bench.worker("w0", "tcp", security=pki.serves("worker", mutual=True)) as server:
        directory = Directory(membership_of(bench.spread(1), server, security=shown(pki)))
        begun = time.monotonic()
        with bench.remote(directory) as (_, executor):
            error = executor.connect()["w0"]
        assert time.monotonic() - begun < 10
        assert error.peer == "w0"
        if reason is None:
            # Without TLS of its own a router does not ask why: it would do so at each lost worker.
            assert not isinstance(error, PermissionDenied)
        else:
            assert isinstance(error, TlsError), repr(error)
            assert reason in error.message


def test_an_impostor_gets_no_rows(bench: MoeBench, pki: Pki) -> None:
    """Of two holders one shows a certificate of a stranger's CA: everything goes to the other."""
    x = bench.rows(np.random.default_rng(4), 17)
    expected = bench.local().forward(0, x).rows
    impostor = ServerSecurity(pki.cert("other-worker"), pki.key("other-worker"), pki.ca)
    with (
        bench.worker("w0", "tcp", security=impostor) as bad,
        bench.worker("w1", "tcp", security=pki.serves("worker", mutual=True)) as good,
    ):
        placement = bench.spread(2, replicas=2)
        directory = Directory(membership_of(placement, bad, good, security=pki.shows("coordinator")))
        with bench.remote(directory) as (router, executor):
            assert isinstance(executor.connect()["w0"], TlsError)
            assert np.array_equal(router.forward(0, x).rows, expected)
        assert bad.worker.counters.counts.rows == 0


def test_by_name_only_a_worker_stands_for_a_worker(bench: MoeBench, pki: Pki) -> None:
    """--worker-tls-name: the certificate of another server of the deployment does not do."""
    shown = ChannelSecurity(pki.ca, pki.cert("coordinator"), pki.key("coordinator"), WORKER_NAME)
    with bench.worker("w0", "tcp", security=pki.serves("worker", mutual=True)) as server:
        assert ask_status(server.target, "w0", WAIT_S, security=shown).worker == "w0"
    with (
        bench.worker("w0", "tcp", security=pki.serves("router", mutual=True)) as server,
        pytest.raises(TlsError, match="the server's certificate is not for worker"),
    ):
        ask_status(server.target, "w0", 3.0, security=shown, wait_for_ready=True)


def test_a_router_attaches_workers(bench: MoeBench, pki: Pki) -> None:
    def place(ids: Any) -> Placement:
        return spread(bench.layers, bench.experts, list(ids))

    with workers(bench, 2, "tcp", pki.serves("worker", mutual=True)) as servers:
        targets = [server.target for server in servers]
        attached = AttachedWorkers(targets, place, security=pki.shows("router"))
        try:
            directory = attached.wait_serving()
            with bench.remote(directory) as (router, _):
                x = bench.rows(np.random.default_rng(5), 3)
                assert np.array_equal(router.forward(0, x).rows, bench.local().forward(0, x).rows)
        finally:
            attached.close()
        for shown, text in (
            (PLAIN, "the server speaks TLS, this client does not"),
            (pki.shows("client"), "expected a certificate with the role coordinator or router"),
        ):
            with pytest.raises(ColibriError, match=text):
                AttachedWorkers(targets, place, AttachOptions(find_timeout_s=1.0), security=shown)


def test_certificates_are_taken_up_without_a_restart(bench: MoeBench, tmp_path: Path) -> None:
    pki = Pki.make(tmp_path / "own")
    x = bench.rows(np.random.default_rng(6), 5)
    expected = bench.local().forward(0, x).rows
    with bench.worker("w0", "tcp", security=pki.serves("worker", mutual=True)) as server:

        def serial() -> int:
            host, _, port = server.target.rpartition(":")
            context = ssl.create_default_context(cafile=str(pki.ca))
            context.load_cert_chain(pki.cert("coordinator"), pki.key("coordinator"))
            with (
                socket.create_connection((host, int(port)), 5) as raw,
                context.wrap_socket(raw, server_hostname=host) as secured,
            ):
                return int(secured.getpeercert()["serialNumber"], 16)  # type: ignore[index, arg-type]

        directory = Directory(membership_of(bench.spread(1), server, security=pki.shows("coordinator")))
        with bench.remote(directory) as (router, _):
            assert np.array_equal(router.forward(0, x).rows, expected)
            before = serial()
            # Half a change, a key without its certificate, changes nothing.
            key = pki.key("worker").read_bytes()
            pki.key("worker").write_bytes(pki.key("client").read_bytes())
            time.sleep(1.2 * LOOK_S)
            assert serial() == before
            pki.key("worker").write_bytes(key)
            made = Authority(pki.folder).renew(1000, 30)
            assert {"worker", "coordinator"} <= {issued.name for issued in made}
            (new,) = (
                issued.serial for issued in made if issued.role is Role.WORKER and issued.name == "worker"
            )
            end = time.monotonic() + 10 * LOOK_S
            while serial() != new:
                assert time.monotonic() < end
                time.sleep(0.1)
            # What was open goes on; a new connection shows what the coordinator's files hold by now.
            assert np.array_equal(router.forward(0, x).rows, expected)
            assert ask_status(server.target, "w0", WAIT_S, security=pki.shows("coordinator")).worker == "w0"
