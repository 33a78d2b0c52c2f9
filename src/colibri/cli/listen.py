"""Looks whether an address can be served, before minutes of loading rather than after."""

from __future__ import annotations

import socket

from colibri.address import UnixAddress, claim_unix_path, parse_address
from colibri.errors import ConfigError
from colibri.security.bind import checked_bind
from colibri.security.server import ServerSecurity


def check_free(listen: str, field: str, security: ServerSecurity | None = None) -> None:
    """Raises ConfigError naming `field` where `listen` is no address, something serves there already, or other
    machines would reach a server that `security` does not protect (None: not looked at)."""
    address = parse_address(listen, field)
    if security is not None:
        address = checked_bind(
            address,
            field,
            tls=security.tls_cert is not None,
            callers_known=security.callers_known,
            insecure=security.insecure,
        )
    if isinstance(address, UnixAddress):
        claim_unix_path(address.path, field)
        return
    host = address.host.strip("[]")
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen(1)
    except OSError as error:
        raise ConfigError(field, "an address that can be bound", f"{listen} ({error.strerror})") from error
