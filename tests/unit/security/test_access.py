"""Who may call what, and how refusals are told."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from colibri.errors import PermissionDenied, Unauthenticated
from colibri.security.access import Access, Rules
from colibri.security.roles import ROLE_PREFIX, Role, Scope, roles_in
from colibri.security.tokens import TokenFile

OPERATOR, CLIENT, PLANE = "/a.Operator/Scale", "/a.Generation/Generate", "/a.Expert/Load"
SCOPES = {"a.Operator": Scope.OPERATOR, "a.Expert": Scope.PLANE}


OWN = frozenset({os.geteuid()})


class Context:
    def __init__(self, *roles: str, peer: str = "ipv4:192.0.2.7:1234") -> None:
        self._roles = roles
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> Any:
        return {"x509_subject_alternative_name": [f"{ROLE_PREFIX}{role}".encode() for role in self._roles]}


def allowed(access: Access, method: str, context: Any) -> bool:
    try:
        access.at_start(method, context)
    except PermissionDenied:
        return False
    return True


def test_nothing_is_asked_where_nothing_was_set_up() -> None:
    access = Access("s", Rules(SCOPES))
    for method in (OPERATOR, CLIENT, PLANE):
        assert access.at_arrival(method, ()) is None
        assert allowed(access, method, Context())


@pytest.mark.parametrize(
    ("role", "methods"),
    [
        ("coordinator", {OPERATOR, CLIENT, PLANE}),
        ("router", {CLIENT, PLANE}),
        ("operator", {OPERATOR, CLIENT}),
        ("client", {CLIENT}),
        ("worker", set()),
        ("king", set()),
    ],
)
def test_roles(role: str, methods: set[str]) -> None:
    access = Access("s", Rules(SCOPES, roles=True))
    assert {m for m in (OPERATOR, CLIENT, PLANE) if allowed(access, m, Context(role))} == methods


def test_a_certificate_without_a_role() -> None:
    with pytest.raises(PermissionDenied) as caught:
        Access("s", Rules(SCOPES, roles=True)).at_start(OPERATOR, Context())  # type: ignore[arg-type]
    expected = (
        "a.Operator: expected a certificate with the role coordinator or operator, got one with no role"
    )
    assert caught.value.message == expected


@pytest.mark.parametrize(
    ("peer", "here"),
    [
        ("ipv4:127.0.0.1:9", True),
        ("ipv6:%5B::1%5D:9", True),
        ("ipv6:[::1]:9", True),
        ("unix:", True),
        ("ipv4:10.127.0.1:9", False),
        ("ipv6:%5B2001:db8::1%5D:9", False),
    ],
)
def test_operators_of_an_open_server_come_from_its_machine(peer: str, here: bool) -> None:
    access = Access("s", Rules(SCOPES, here=True), users=lambda peer: OWN)
    assert allowed(access, OPERATOR, Context(peer=peer)) == here
    assert allowed(access, CLIENT, Context(peer=peer))


@pytest.mark.parametrize(
    ("users", "got"),
    [
        (OWN, ""),
        (frozenset({0}), ""),
        (OWN | {0}, ""),
        (frozenset({65534}), "user 65534"),
        (frozenset({65533, 65534}), "user 65533 or user 65534"),
        (OWN | {65534}, "user "),
        (frozenset[int](), "one that nothing is known of"),
    ],
)
def test_on_loopback_the_plane_is_the_servers_own_users(users: frozenset[int], got: str) -> None:
    access = Access("s", Rules(SCOPES, own_user=True), users=lambda peer: users)
    for method, missing in ((OPERATOR, "--tokens"), (PLANE, "--worker-secret-file")):
        if not got:
            access.at_start(method, Context(peer="ipv4:127.0.0.1:9"))  # type: ignore[arg-type]
            continue
        with pytest.raises(PermissionDenied) as caught:
            access.at_start(method, Context(peer="ipv4:127.0.0.1:9"))  # type: ignore[arg-type]
        assert f"since it has neither {missing} nor --client-ca, got {got}" in caught.value.message
    assert allowed(access, CLIENT, Context(peer="ipv4:127.0.0.1:9"))
    assert allowed(access, PLANE, Context(peer="unix:"))


def test_a_kernel_that_does_not_tell(caplog: pytest.LogCaptureFixture) -> None:
    def unknown(peer: str) -> frozenset[int]:
        raise OSError("no table")

    access = Access("s", Rules(SCOPES, own_user=True), users=unknown)
    assert allowed(access, PLANE, Context(peer="ipv4:127.0.0.1:9"))
    assert "callers on loopback cannot be told apart: no table" in caplog.text


def test_tokens_decide_where_there_are_any(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("alice client 0123456789abcdef\nops operator fedcba9876543210\n")
    path.chmod(0o600)
    access = Access("s", Rules(SCOPES, TokenFile(path), roles=True))

    def arrives(method: str, token: str) -> Any:
        return access.at_arrival(method, (("authorization", f"Bearer {token}"),))

    assert arrives(CLIENT, "0123456789abcdef") is None
    assert isinstance(arrives(OPERATOR, "0123456789abcdef"), PermissionDenied)
    assert arrives(OPERATOR, "fedcba9876543210") is None
    assert isinstance(arrives(CLIENT, "0123456789abcdeF"), Unauthenticated)
    assert isinstance(
        access.at_arrival(CLIENT, (("authorization", b"Bearer 0123456789abcdef"),)), Unauthenticated
    )
    # The handshake has demanded a certificate; what its holder may do the token says.
    assert allowed(access, OPERATOR, Context("client"))
    assert not allowed(access, PLANE, Context("client"))
    # No token is for the workers' plane.
    assert isinstance(arrives(PLANE, "fedcba9876543210"), PermissionDenied)


def test_refusals_are_told_together(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    access = Access("s", Rules(SCOPES, roles=True), lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            allowed(access, PLANE, Context("client"))
        now[0] = 11.0
        allowed(access, PLANE, Context("client"))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[2].split(",")[0] for line in lines] == [
        " refused 1 call",
        " refused 100 calls",
    ]


def test_role_names() -> None:
    names = [f"{ROLE_PREFIX}{role.value}" for role in Role]
    assert roles_in(["spiffe://x", *names, f"{ROLE_PREFIX}nobody"]) == list(Role)
