"""Say in one line what a server offers, and to whom."""

from __future__ import annotations

from collections.abc import Sequence

from colibri.security.server import ServerSecurity


def offer(target: str, names: Sequence[str], security: ServerSecurity, *, local: bool) -> str:
    """Returns the line: `unix:/run/c.sock answers Generation, Router, health; plaintext; for processes of this user`.

    target: the address for clients.
    names: full names of the gRPC services.
    local: whether only processes of this machine reach the address.
    """
    short = [name.rpartition(".")[2] for name in names]
    reflects = local if security.reflection is None else security.reflection
    calls = ", ".join([*short, "health", *(["reflection"] if reflects else [])])
    wire = "plaintext" if security.tls_cert is None else "TLS"
    return f"{target} answers {calls}; {wire}; for {_callers(security, local=local)}"


def _callers(security: ServerSecurity, *, local: bool) -> str:
    shown = [
        what
        for given, what in (
            (security.tokens, "a token"),
            (security.client_ca, "a certificate"),
            (security.secret, "the deployment's secret"),
        )
        if given is not None
    ]
    if shown:
        return f"callers with {' and '.join(shown)}"
    return "processes of this user" if local else "everybody who reaches it"
