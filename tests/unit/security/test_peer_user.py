"""Whose socket is the other end of a loopback connection."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from colibri.security.peer_user import users_of
from tests.support.other_user import STRANGER, as_stranger, needs_root

little = pytest.mark.skipif(sys.byteorder != "little", reason="the table below is a little-endian machine's")
HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(local: str, state: str, user: int, inode: int = 7) -> str:
    return f"   0: {local} 0100007F:C383 {state} 00000000:00000000 00:00000000 00000000 {user:5d} 0 {inode} 1 0\n"


def tables(folder: Path, tcp: str, tcp6: str = "") -> Path:
    (folder / "tcp").write_text(HEAD + tcp)
    if tcp6:
        (folder / "tcp6").write_text(HEAD + tcp6)
    return folder


@little
@pytest.mark.parametrize(
    ("rows", "users"),
    [
        (row("0100007F:9C40", "01", 1000), {1000}),
        # Another port, another address, a listener.
        (row("0100007F:9C41", "01", 1000) + row("0200007F:9C40", "01", 1000), set()),
        (row("0100007F:9C40", "0A", 1000), set()),
        # What its process has closed is shown as root's.
        (row("0100007F:9C40", "04", 0, 0) + row("0100007F:9C40", "06", 0, 0), set()),
        (row("0100007F:9C40", "01", 0, 0), set()),
        (row("0100007F:9C40", "06", 0) + row("0100007F:9C40", "01", 65534), {65534}),
        # One address, two connections: nobody is surely anybody.
        (row("0100007F:9C40", "01", 0) + row("0100007F:9C40", "01", 65534), {0, 65534}),
        ("garbage\n\n", set()),
    ],
)
def test_by_the_kernels_table(rows: str, users: set[int], tmp_path: Path) -> None:
    assert users_of("ipv4:127.0.0.1:40000", tables(tmp_path, rows)) == users


@little
def test_a_socket_of_both_families(tmp_path: Path) -> None:
    mapped = row("0000000000000000FFFF00000100007F:9C40", "01", 1000)
    found = tables(tmp_path, "", mapped + row("00000000000000000000000001000000:9C40", "01", 1001))
    assert users_of("ipv4:127.0.0.1:40000", found) == {1000}
    assert users_of("ipv6:%5B::ffff:127.0.0.1%5D:40000", found) == {1000}
    assert users_of("ipv6:%5B::1%5D:40000", found) == {1001}
    assert users_of("ipv6:[::1]:40000", found) == {1001}


def test_no_peer_of_the_network(tmp_path: Path) -> None:
    assert users_of("unix:", tables(tmp_path, "")) == frozenset()
    with pytest.raises(OSError, match="tcp"):
        users_of("ipv4:127.0.0.1:1", tmp_path / "absent")


def _peer(accepted: socket.socket) -> str:
    host, port = accepted.getpeername()[:2]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_real_connections(family: socket.AddressFamily, host: str) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} here")
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]) as client:
            accepted, _ = listener.accept()
            with accepted:
                assert users_of(_peer(accepted)) == {os.geteuid()}
                client.close()
                assert users_of(_peer(accepted)) == frozenset()


@needs_root
def test_another_users_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        where = listener.getsockname()

        def connect() -> str:
            with socket.create_connection(where) as client:
                return client.recv(100).decode()

        import threading

        seen: list[str] = []

        def serve() -> None:
            accepted, _ = listener.accept()
            with accepted:
                seen.extend(str(user) for user in users_of(_peer(accepted)))
                accepted.sendall(b"seen")

        thread = threading.Thread(target=serve)
        thread.start()
        assert as_stranger(connect) == "seen"
        thread.join(10)
        assert seen == [str(STRANGER)]
