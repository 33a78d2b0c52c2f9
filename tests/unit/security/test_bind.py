"""Which addresses are this machine's own, and what the others need."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from colibri.address import parse_address
from colibri.errors import ConfigError
from colibri.rpc.server import build_server
from colibri.security.bind import checked_bind, is_local
from colibri.security.server import ServerSecurity

LOCAL = [
    "unix:/tmp/x",
    "127.0.0.1:1",
    "127.8.9.10:1",
    "[::1]:1",
    "localhost:1",
    "[::ffff:127.0.0.1]:1",
    "127.1:1",
]
OTHERS = [
    "0.0.0.0:1",
    "[::]:1",
    "192.0.2.1:1",
    "[2001:db8::1]:1",
    "0:1",
    "[::ffff:0.0.0.0]:1",
    "[::ffff:192.0.2.1]:1",
]


def names(monkeypatch: pytest.MonkeyPatch, **hosts: list[str]) -> None:
    """Stands in for the resolver."""

    def lookup(host: str, port: Any, **rest: Any) -> list[Any]:
        if host not in hosts:
            raise socket.gaierror("unknown")
        kinds = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in hosts[host]]
        return [(kind, 1, 6, "", (address, 0)) for kind, address in zip(kinds, hosts[host], strict=True)]

    monkeypatch.setattr("colibri.security.bind.socket.getaddrinfo", lookup)


def bound(text: str, *, tls: bool = False, callers_known: bool = False, insecure: bool = False) -> str:
    return str(
        checked_bind(parse_address(text), "listen", tls=tls, callers_known=callers_known, insecure=insecure)
    )


@pytest.mark.parametrize("text", LOCAL)
def test_local_addresses_need_nothing(text: str) -> None:
    assert is_local(parse_address(text))
    bound(text)


@pytest.mark.parametrize("text", OTHERS)
def test_others_need_tls_and_known_callers(text: str) -> None:
    assert not is_local(parse_address(text))
    with pytest.raises(ConfigError, match=r"listen: .*--tls-cert and --tls-key .*which other machines reach"):
        bound(text)
    with pytest.raises(ConfigError, match=r"--tls-cert"):
        bound(text, callers_known=True)
    with pytest.raises(ConfigError, match=r"listen: .*--tokens or --client-ca .*which other machines reach"):
        bound(text, tls=True)
    assert bound(text, tls=True, callers_known=True) == text
    assert bound(text, insecure=True) == text


def test_a_name_counts_as_all_that_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, here=["127.0.0.1"], both=["127.0.0.1", "192.0.2.1"], six=["::1"])
    assert is_local(parse_address("here:1"))
    assert not is_local(parse_address("both:1"))
    assert not is_local(parse_address("unknown:1"))
    for name in ("both:1", "unknown:1"):
        with pytest.raises(ConfigError):
            bound(name)
    # What was looked at is bound: the name could stand for something else a moment later.
    assert bound("here:1") == "127.0.0.1:1"
    assert bound("six:1") == "[::1]:1"
    assert bound("here:1", tls=True) == "here:1"


def test_a_server_judges_for_itself() -> None:
    """Also where no command line has looked before."""
    with pytest.raises(ConfigError, match="which other machines reach"):
        build_server([], listen="0.0.0.0:0")
    server = build_server([], listen="0.0.0.0:0", security=ServerSecurity(insecure=True))
    server.stop(0)
