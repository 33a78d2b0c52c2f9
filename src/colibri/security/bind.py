"""Decide where a server may listen: freely on this machine, elsewhere only with what keeps strangers out."""

from __future__ import annotations

import ipaddress
import socket

from colibri.address import Address, TcpAddress, UnixAddress
from colibri.errors import ConfigError


def is_local(address: Address) -> bool:
    """Whether only processes of this machine can reach it: a unix socket, or a host whose addresses are all loopback.

    A host name is resolved; one that cannot be resolved is not local.
    """
    return isinstance(address, UnixAddress) or _are_loopback(_resolve(address))


def checked_bind(address: Address, field: str, *, tls: bool, callers_known: bool, insecure: bool) -> Address:
    """Returns the address to bind. Raises ConfigError, naming `field`, if others can reach it and it is not protected.

    tls: the server speaks TLS.
    callers_known: it demands tokens or certificates.
    insecure: the operator wants it open.

    A name without TLS is bound as the very addresses that were checked, since what it stands for could change.
    """
    if isinstance(address, UnixAddress):
        return address
    found = _resolve(address)
    if _are_loopback(found):
        return address if tls or address.host == "localhost" else TcpAddress(found[0], address.port)
    if not insecure and not tls:
        raise ConfigError(
            field,
            "a loopback address or a unix socket, for want of --tls-cert and --tls-key (--insecure: serve in clear)",
            f"{address}, which other machines reach",
        )
    if not insecure and not callers_known:
        raise ConfigError(
            field,
            "a loopback address or a unix socket, for want of --tokens or --client-ca (--insecure: serve anybody)",
            f"{address}, which other machines reach",
        )
    return address


def _resolve(address: TcpAddress) -> list[str]:
    """Returns the addresses as texts; empty if the name does not resolve."""
    try:
        found = socket.getaddrinfo(address.host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    hosts = dict.fromkeys(str(where[0]) for _, _, _, _, where in found)
    return [f"[{host}]" if ":" in host else host for host in hosts]


def _are_loopback(hosts: list[str]) -> bool:
    return bool(hosts) and all(_is_loopback(host.strip("[]")) for host in hosts)


def _is_loopback(host: str) -> bool:
    found = ipaddress.ip_address(host.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
