"""Looks whether an address can be served, before minutes of loading rather than after."""

from __future__ import annotations

import socket

from colibri.errors import ConfigError
from colibri.transport.address import UnixAddress, claim_unix_path, parse_address


def check_free(listen: str, field: str) -> None:
    """Raises ConfigError naming `field` where `listen` is no address or something serves there already."""
    address = parse_address(listen, field)
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
