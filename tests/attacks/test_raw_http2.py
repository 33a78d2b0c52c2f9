"""Floods below gRPC: what public reports did to HTTP/2 servers. After each the server answers, and took no memory for
what was thrown at it. (CVE-2019-9511 to 9518, CVE-2023-4785, CVE-2023-44487, CVE-2024-27316.)"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from colibri.grpc_options import channel_options, server_options
from colibri.rpc.server import build_server
from colibri.security.channel import PLAIN, ChannelSecurity
from tests.integration.bad_input.live import open_fds, rss_of
from tests.support.attacked import OPTIONS, WAIT_S
from tests.support.pki import Pki, new_token
from tests.support.raw_http2 import RawHttp2
from tests.support.served import Served, serve
from tests.support.tiny_engine import TinyModel
from tests.support.tries import Tries

GENERATE, CHECK = "/colibri.v1.Generation/Generate", "/grpc.health.v1.Health/Check"
#: What a flood may leave behind, of which tens of megabytes were sent.
MEMORY_BYTES = 48 << 20
SETTINGS, PING, PRIORITY, WINDOW, HEADERS, CONTINUATION, DATA = 4, 6, 2, 8, 1, 9, 0


@dataclass(frozen=True, slots=True)
class Victim:
    """Plain, or with TLS and tokens."""

    served: Served
    ca: Path | None

    def connect(self, window: int = 65_535) -> RawHttp2:
        return RawHttp2(self.served.target, self.ca, window=window)

    def unharmed(self) -> None:
        """A good request, and health on a connection of its own."""
        answer = self.served.client.generate([5, 9, 42], max_tokens=4, ignore_eos=True).answer()
        assert len(answer.ids) == 4
        shown = PLAIN if self.ca is None else ChannelSecurity(tls_ca=self.ca)
        with shown.open(self.served.target, channel_options()) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            assert health.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status == 1


@pytest.fixture(scope="module", params=["plain", "tls"])
def victim(
    request: pytest.FixtureRequest, pki: Pki, tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Victim]:
    folder = tmp_path_factory.mktemp("victim")
    if request.param == "plain":
        with serve(tiny, folder, OPTIONS, listen="127.0.0.1:0") as served:
            yield Victim(served, None)
        return
    tokens, own = new_token(folder, "alice")
    security, shown = pki.serves(tokens=tokens), pki.shows(token_file=own)
    with serve(tiny, folder, OPTIONS, listen="127.0.0.1:0", security=security, shown=shown) as served:
        yield Victim(served, pki.ca)


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


#: Frames that are legal one by one, and how often.
FLOODS: dict[str, tuple[int, Callable[[int], bytes]]] = {
    "pings": (20_000, lambda turn: frame(PING, turn.to_bytes(8, "big"))),
    "settings": (10_000, lambda turn: frame(SETTINGS, struct.pack(">HI", 4, 65_535 + turn % 2))),
    "settings of every id": (2_000, lambda turn: frame(SETTINGS, struct.pack(">HI", turn, turn))),
    "priorities": (10_000, lambda turn: frame(PRIORITY, struct.pack(">IB", 0, turn % 256), 0, 2 * turn + 1)),
    "windows by one byte": (10_000, lambda turn: frame(WINDOW, struct.pack(">I", 1))),
    "unknown frames": (5_000, lambda turn: frame(0x20 + turn % 64, bytes(turn % 64))),
    "data of no stream": (5_000, lambda turn: frame(DATA, b"", 0, 2 * turn + 1)),
    "continuations of nothing": (100, lambda turn: frame(CONTINUATION, b"\x82", 0, 1)),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_frames_by_the_thousand(victim: Victim, kind: str, tries: Tries) -> None:
    count, make = FLOODS[kind]
    victim.unharmed()
    before = rss_of_self()
    with victim.connect() as connection:
        connection.settle()
        for start in range(0, count, 500):
            connection.send_raw(b"".join(make(turn) for turn in range(start, min(count, start + 500))))
            if connection.gone:
                break
        victim.unharmed()
    assert rss_of_self() - before < MEMORY_BYTES
    tries(f"frames: {kind}", count)


def test_streams_opened_and_reset(victim: Victim, tries: Tries) -> None:
    """Rapid reset: a call costs its caller two frames, and the server a handler."""
    with victim.connect() as connection:
        connection.settle()
        for _ in range(20):
            for turn in range(100):
                number = connection.open(CHECK if turn % 2 else GENERATE)
                connection.message(number, b"")
                connection.reset(number)
            connection.flush()
            connection.listen(0.01)
            if connection.gone:
                break
        victim.unharmed()
    tries("streams opened and reset", 2000)


@pytest.mark.parametrize(
    ("count", "size"), [(1, 20_000), (1, 30_000), (20, 4_000), (2_000, 10)], ids=lambda value: f"{value:,}"
)
def test_metadata_without_end(victim: Victim, count: int, size: int, tries: Tries) -> None:
    """Above gRPC's bound of 16 KiB a call is refused, and its connection lives, or ends."""
    before = rss_of_self()
    with victim.connect() as connection:
        connection.settle()
        numbers = [
            connection.open(CHECK, [(f"x-{turn}", "v" * size) for turn in range(count)]) for _ in range(2)
        ]
        for number in numbers:
            connection.message(number, b"")
        connection.flush()
        connection.until_ended(numbers, 10)
        assert not any(connection.streams[number].status == 0 for number in numbers)
        victim.unharmed()
    assert rss_of_self() - before < MEMORY_BYTES
    tries("metadata floods", 2)


def test_a_small_block_that_unfolds_to_a_large_one(victim: Victim, tries: Tries) -> None:
    """HPACK: one long value in the table, referred to by a byte each: 12 MB out of 3 KB."""
    before = rss_of_self()
    with victim.connect() as connection:
        connection.settle()
        numbers = [connection.open(CHECK, [("x-long", "v" * 3_900)] * 3_000) for _ in range(10)]
        connection.flush()
        connection.until_ended(numbers, 10)
        assert not any(connection.streams[number].status == 0 for number in numbers)
        victim.unharmed()
    assert rss_of_self() - before < MEMORY_BYTES
    tries("blocks that unfold", 10)


def test_headers_that_never_end(victim: Victim, tries: Tries) -> None:
    """CONTINUATION frames by the thousand, 64 MB in all, and no end of headers."""
    before = rss_of_self()
    with victim.connect() as connection:
        connection.settle()
        # A literal without indexing, name x, value of 8,000 bytes.
        field = b"\x00\x01x\x7f" + _varint(8_000 - 127) + b"v" * 8_000
        connection.send_raw(frame(HEADERS, b"\x83\x87", 0, 1))
        sent = 0
        for _ in range(4_000):
            connection.send_raw(frame(CONTINUATION, field * 2, 0, 1))
            sent += 1
            if connection.gone:
                break
        victim.unharmed()
    assert rss_of_self() - before < MEMORY_BYTES
    tries("continuations without end", sent)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def test_a_peer_that_grants_windows_and_reads_nothing(victim: Victim, tries: Tries) -> None:
    """Replies pile up in the server's socket and then in its buffers, within bounds."""
    before = rss_of_self()
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(victim.connect(window=1 << 30))
            connection.settle()
            for _ in range(200):
                number = connection.open("/colibri.v1.Generation/ModelInfo")
                connection.message(number, b"")
            connection.flush()
        victim.unharmed()
    assert rss_of_self() - before < MEMORY_BYTES
    tries("calls whose replies stay in the socket", 800)


def test_connections_by_the_hundred(victim: Victim, tries: Tries) -> None:
    """Opened and left, opened and broken off, begun and left; descriptors come back."""
    victim.unharmed()
    before = open_fds_of_self()
    host, _, port = victim.served.target.rpartition(":")
    with ExitStack() as stack:
        for turn in range(300):
            with contextlib.suppress(OSError):
                peer = socket.create_connection((host, int(port)), 5.0)
                if turn % 3 == 0:
                    # Broken off: the server accepts a connection that is gone already.
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    peer.close()
                    continue
                stack.enter_context(contextlib.closing(peer))
                if turn % 3 == 1:
                    peer.sendall(
                        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if victim.ca is None else b"\x16\x03\x01"
                    )
        victim.unharmed()
    until = 100
    while open_fds_of_self() > before + 8 and until:
        until -= 1
        victim.unharmed()
    assert open_fds_of_self() <= before + 8
    tries("connections", 300)


def test_connections_are_bounded_and_idle_ones_end(tmp_path: Path, tries: Tries) -> None:
    """With small bounds in place of those of a server. What calls is not idle."""
    bounds = {"grpc.max_allowed_incoming_connections": 20, "grpc.max_connection_idle_ms": 1000}
    assert {name for name, _ in server_options()} >= set(bounds)
    options = [(name, bounds.get(name, value)) for name, value in server_options()]
    server = build_server([], listen="127.0.0.1:0", options=options)
    server.start()
    try:
        with ExitStack() as stack:
            busy = stack.enter_context(RawHttp2(server.target))
            watch = busy.open("/grpc.health.v1.Health/Watch")
            busy.message(watch, b"")
            busy.flush()
            busy.listen(0.2)
            idle = [stack.enter_context(RawHttp2(server.target)) for _ in range(40)]
            refused = 0
            for connection in idle:
                connection.settle(1.0)
                refused += connection.gone
            assert refused >= 20
            for connection in idle:
                connection.listen(WAIT_S)
                assert connection.gone
            busy.listen(0.2)
            assert not busy.gone
            assert not busy.streams[watch].ended
        with RawHttp2(server.target) as late:
            number = late.open(CHECK)
            late.message(number, b"")
            late.flush()
            assert late.until_ended([number], WAIT_S)
            assert late.streams[number].status == 0
    finally:
        server.stop(0.0)
    tries("connections that idle", 40)


def test_certificates_that_do_not_fit(pki: Pki, tiny: TinyModel, tmp_path: Path, tries: Tries) -> None:
    """None, of another CA, expired: the handshake ends, whatever is sent behind it; whose name does not fit is not
    trusted by callers."""
    security = pki.serves(mutual=True)
    with serve(
        tiny, tmp_path, OPTIONS, listen="127.0.0.1:0", security=security, shown=pki.shows("client")
    ) as served:
        host, _, port = served.target.rpartition(":")
        for name in (None, "other-client", "expired-client"):
            for _ in range(10):
                assert not _speaks(host, int(port), pki, name)
        assert _speaks(host, int(port), pki, "client")
        for wrong in ("localhost.example", "worker.colibri.internal", "127.0.0.2"):
            with (
                pytest.raises(ssl.SSLCertVerificationError),
                socket.create_connection((host, int(port))) as peer,
            ):
                ssl.create_default_context(cafile=str(pki.ca)).wrap_socket(peer, server_hostname=wrong)
        assert len(served.client.generate([5, 9, 42], max_tokens=4, ignore_eos=True).answer().ids) == 4
    tries("certificates that do not fit", 33)


def _speaks(host: str, port: int, pki: Pki, name: str | None) -> bool:
    """Whether the server takes that certificate: in TLS 1.3 it says so after the handshake."""
    context = ssl.create_default_context(cafile=str(pki.ca))
    context.set_alpn_protocols(["h2"])
    if name is not None:
        context.load_cert_chain(str(pki.cert(name)), str(pki.key(name)))
    try:
        with (
            socket.create_connection((host, port), WAIT_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as peer,
        ):
            peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS))
            return peer.recv(9)[3:4] == bytes((SETTINGS,))
    except OSError:
        return False


def rss_of_self() -> int:
    return rss_of(os.getpid())


def open_fds_of_self() -> int:
    return open_fds(os.getpid())
