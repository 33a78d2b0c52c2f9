from __future__ import annotations

import socket
from pathlib import Path

import pytest

from colibri.address import TcpAddress, UnixAddress, claim_unix_path, parse_address
from colibri.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/tmp/a.sock", UnixAddress("/tmp/a.sock")),
        ("unix:///tmp/a.sock", UnixAddress("/tmp/a.sock")),
        ("127.0.0.1:0", TcpAddress("127.0.0.1", 0)),
        ("node-1.cluster.local:50051", TcpAddress("node-1.cluster.local", 50051)),
        ("[::1]:65535", TcpAddress("[::1]", 65535)),
        ("[fe80::1%eth0]:1", TcpAddress("[fe80::1%eth0]", 1)),
    ],
)
def test_right_addresses(text: str, address: UnixAddress | TcpAddress) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "", "host", ":1", "host:", "host:65536", "host:-1", "host:+1", "host:1x", "host:\u0661", "::1:80", "a b:1",
        "http://host:1", "unix:", "unix:relative.sock", "unix:/a\0b", "unix:/" + "x" * 107, "dns:///host:1",
    ],
)  # fmt: skip
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^listen: expected"):
        parse_address(text, "listen")


def listening(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)
    return server


def test_a_socket_left_by_a_killed_server_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    listening(path).close()
    assert path.is_socket()
    claim_unix_path(str(path))
    assert not path.exists()
    claim_unix_path(str(path))


def test_a_living_server_keeps_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with listening(path), pytest.raises(ConfigError, match="where a server answers"):
        claim_unix_path(str(path))
    assert path.is_socket()


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="which is no socket"):
        claim_unix_path(str(path))
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(ConfigError, match="which is no socket"):
        claim_unix_path(str(link))
    assert path.read_text() == "precious"


def test_the_folder_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in a folder that exists"):
        claim_unix_path(str(tmp_path / "no" / "s.sock"))
