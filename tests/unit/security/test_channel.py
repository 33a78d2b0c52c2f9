"""What a caller may be told to show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from colibri.errors import ConfigError
from colibri.security.channel import PLAIN, ChannelSecurity

P = Path("x")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tls_ca": P, "tls_cert": P}, "--tls-key: expected a file, with --tls-cert, got none"),
        ({"tls_ca": P, "tls_key": P}, "--tls-cert: expected a file, with --tls-key, got none"),
        ({"tls_cert": P, "tls_key": P}, "--tls-ca: expected the CA of the server, with --tls-cert, got none"),
        ({"tls_name": "n"}, "--tls-ca: expected the CA of the server, with --tls-name, got none"),
        ({"token": "t" * 20, "token_file": P}, "token: expected nothing beside token_file, got both"),
        ({"token": "secret"}, "token: expected 16 to 512 characters of a token, got 6 others"),
    ],
)
def test_halves(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ChannelSecurity(**fields)
    assert caught.value.message == text


def test_plain() -> None:
    assert PLAIN.metadata() is None
    PLAIN.check("192.0.2.1:1")


@pytest.mark.parametrize("target", ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/tmp/s"])
def test_a_token_may_go_about_this_machine(target: str) -> None:
    security = ChannelSecurity(token="t" * 20)
    security.check(target)
    assert security.metadata() == (("authorization", "Bearer " + "t" * 20),)
    assert "t" * 20 not in repr(security)


def test_a_token_file_counts_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("a" * 20)
    path.chmod(0o600)
    security = ChannelSecurity(token_file=path)
    assert security.metadata() == (("authorization", "Bearer " + "a" * 20),)
    path.write_text("bb" * 20)
    assert security.metadata() == (("authorization", "Bearer " + "bb" * 20),)
    path.chmod(0o644)
    path.write_text("c" * 30)
    with pytest.raises(ConfigError, match="--token-file: expected a file that others cannot read or write"):
        security.metadata()


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("unix:/tmp/s", "localhost"),
        ("h.example:1", "h.example"),
        ("[::1%lo]:1", "::1"),
        ("10.0.0.1:1", "10.0.0.1"),
    ],
)
def test_the_name_that_is_expected(target: str, name: str) -> None:
    assert ChannelSecurity(tls_ca=P).server_name(target) == name
    assert ChannelSecurity(tls_ca=P, tls_name="other").server_name(target) == "other"
