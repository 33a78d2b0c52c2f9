"""Decide who may call what: once before anything of a request is read, and again when the peer is known."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from colibri.deadline import Clock
from colibri.errors import ColibriError, PermissionDenied, Unauthenticated
from colibri.security.peer_user import users_of
from colibri.security.plane_secret import PlaneSecret
from colibri.security.roles import Role, Scope, roles_for, roles_in
from colibri.security.tokens import TokenFile

_log = logging.getLogger(__name__)

AUTHORIZATION = "authorization"
#: Refusals are counted, and told at most so often, seconds: strangers must not fill a log.
_TELL_S = 10.0
_LOOPBACK = ("unix:", "ipv4:127.", "ipv6:%5B::1%5D", "ipv6:[::1]")


@dataclass(frozen=True, slots=True)
class Rules:
    """What a server asks of its callers.

    scopes: full name of a service -> scope; CLIENT for others.
    tokens: None: nobody needs one.
    roles: judge callers without a token by the role in their certificate, which the TLS handshake has demanded.
    here: calls of scope OPERATOR must come from this machine, since nothing says who calls.
    secret: what every call to a worker must show, in place of tokens.
    own_user: on loopback, calls of the scopes OPERATOR and PLANE must come from the server's own user or root,
        since nothing else says who calls.
    """

    scopes: Mapping[str, Scope]
    tokens: TokenFile | None = None
    roles: bool = False
    here: bool = False
    secret: PlaneSecret | None = None
    own_user: bool = False


class Access:
    """Applies the rules. Thread-safe.

    name: of the server, in refusals.
    users: returns which users of this machine may hold a peer's connection.
    """

    def __init__(
        self,
        name: str,
        rules: Rules,
        clock: Clock = time.monotonic,
        users: Callable[[str], frozenset[int]] = users_of,
    ) -> None:
        self._rules = rules
        self._users = users
        self._refusals = _Refusals(name, clock)

    def at_arrival(self, method: str, metadata: Iterable[tuple[str, str | bytes]]) -> ColibriError | None:
        """Judges a call whose headers have arrived. Returns why it is refused, or None.

        method: /package.Service/Method.
        """
        rules = self._rules
        if rules.tokens is None and rules.secret is None:
            return None
        found = next((value for key, value in metadata if key == AUTHORIZATION), None)
        shown = found if isinstance(found, str) else None
        if rules.secret is not None:
            refusal = _check_secret(rules.secret, shown)
            if refusal is not None:
                self._refusals.note(refusal)
            return refusal
        if rules.tokens is None:
            return None
        try:
            token = rules.tokens.check(shown)
        except ColibriError as error:
            self._refusals.note(error)
            return error
        service, scope = self._needed(method)
        if scope in token.scopes:
            return None
        denied = PermissionDenied(
            f"{service}: expected a token of scope {scope.value}, got {token.name}'s, of scope {token.scope.value}"
        )
        self._refusals.note(denied)
        return denied

    def token_of(self, metadata: Iterable[tuple[str, str | bytes]]) -> str:
        """Returns a text that tells callers apart by their token, which was accepted; empty if there are no tokens."""
        if self._rules.tokens is None:
            return ""
        shown = next((value for key, value in metadata if key == AUTHORIZATION), "")
        return shown.partition(" ")[2].strip() if isinstance(shown, str) else ""

    def certificate_of(self, context: grpc.ServicerContext) -> str:
        """Returns a text that tells callers apart by certificate; empty if certificates are not used."""
        if not self._rules.roles:
            return ""
        identity: Mapping[str, Any] = context.auth_context()
        shown: Iterable[bytes] = identity.get("x509_pem_cert", ())
        return "".join(each.decode(errors="replace") for each in shown)

    def at_start(self, method: str, context: grpc.ServicerContext) -> None:
        """Judges a call that begins. Raises PermissionDenied."""
        rules = self._rules
        service, scope = self._needed(method)
        denied: PermissionDenied | None = None
        # PLANE calls have no tokens: machines show certificates.
        if rules.roles and (rules.tokens is None or scope is Scope.PLANE):
            roles = peer_roles(context)
            if not any(scope in role.scopes for role in roles):
                allowed = " or ".join(role.value for role in roles_for(scope))
                got = " and ".join(role.value for role in roles)
                denied = PermissionDenied(
                    f"{service}: expected a certificate with the role {allowed}, got one with {got or 'no role'}"
                )
        elif rules.here and scope is Scope.OPERATOR and not context.peer().startswith(_LOOPBACK):
            denied = PermissionDenied(
                f"{service}: expected a caller on the server's own machine, since it has neither --tokens nor "
                "--client-ca, got one from elsewhere"
            )
        elif (rules.own_user and scope is not Scope.CLIENT) or (rules.here and scope is Scope.OPERATOR):
            denied = self._check_user(service, scope, context.peer())
        if denied is not None:
            self._refusals.note(denied, context.peer())
            raise denied

    def _check_user(self, service: str, scope: Scope, peer: str) -> PermissionDenied | None:
        if peer.startswith("unix:"):  # the file system has let it through
            return None
        try:
            users = self._users(peer)
        except OSError as error:
            # A kernel that does not tell: the port is as open as any on loopback.
            _log.warning("%s: callers on loopback cannot be told apart: %s", service, error)
            return None
        own = os.geteuid()
        if users and users <= {own, 0}:
            return None
        missing = "--worker-secret-file" if scope is Scope.PLANE else "--tokens"
        got = " or ".join(f"user {user}" for user in sorted(users)) or "one that nothing is known of"
        return PermissionDenied(
            f"{service}: expected a caller of user {own}, the server's own, or root, since it has neither "
            f"{missing} nor --client-ca, got {got}"
        )

    def _needed(self, method: str) -> tuple[str, Scope]:
        service = method.lstrip("/").partition("/")[0]
        return service, self._rules.scopes.get(service, Scope.CLIENT)


def _check_secret(secret: PlaneSecret, shown: str | None) -> Unauthenticated | None:
    """Takes as long for a wrong secret as for the right one, and reveals nothing else about it."""
    kind, _, text = (shown or "").partition(" ")
    if secret.matches(text.strip()) and kind.lower() == "bearer":
        return None
    got = "none" if shown is None else "another one"
    return Unauthenticated(
        f"authorization: expected the secret of this worker's deployment (--worker-secret-file), got {got}"
    )


def peer_roles(context: grpc.ServicerContext) -> list[Role]:
    """Returns the roles in the caller's certificate, which the TLS handshake has verified."""
    shown: Mapping[str, Any] = context.auth_context()
    names: Iterable[bytes] = shown.get("x509_subject_alternative_name", ())
    return roles_in(name.decode(errors="replace") for name in names)


class _Refusals:
    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._untold = 0
        self._told_at: float | None = None

    def note(self, error: ColibriError, peer: str = "") -> None:
        with self._lock:
            self._untold += 1
            now = self._clock()
            if self._told_at is not None and now - self._told_at < _TELL_S:
                return
            count, self._untold, self._told_at = self._untold, 0, now
        _log.warning(
            "%s: refused %d call%s, the last%s: %s",
            self._name,
            count,
            "" if count == 1 else "s",
            f" from {peer}" if peer else "",
            error.message,
        )
