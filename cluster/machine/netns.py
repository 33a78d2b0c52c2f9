"""Run workers in network namespaces of their own, to test slow and cut networks on one machine (man 8 ip-netns)."""

from __future__ import annotations

import ipaddress
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from colibri.errors import ConfigError

_FOLDER = Path("/var/run/netns")


@dataclass(frozen=True, slots=True)
class NetworkPlace:
    """namespace: as `ip netns list` names it; address: of this worker there, an IP that this process reaches."""

    namespace: str
    address: str

    @property
    def listen(self) -> str:
        """The address to listen on: host:port, with a free port."""
        return f"[{self.address}]:0" if ":" in self.address else f"{self.address}:0"

    def command(self, argv: list[str]) -> list[str]:
        """Returns `argv` as run inside. `ip` becomes that program, so the process id stays."""
        return ["ip", "netns", "exec", self.namespace, *argv]


def parse_network_place(text: str, field: str) -> tuple[str, NetworkPlace]:
    """Reads `WORKER=NAMESPACE,ADDRESS`. Raises ConfigError naming `field`."""
    worker, equals, where = text.partition("=")
    namespace, comma, address = where.partition(",")
    if not (equals and comma and worker and namespace) or "/" in namespace or namespace.startswith("-"):
        raise ConfigError(field, "WORKER=NAMESPACE,ADDRESS", text)
    try:
        return worker, NetworkPlace(namespace, str(ipaddress.ip_address(address)))
    except ValueError:
        raise ConfigError(field, "an IP address behind the comma", text) from None


def check_network_place(place: NetworkPlace, field: str, folder: Path = _FOLDER) -> None:
    """Raises ConfigError if this process cannot start anything in that namespace."""
    if os.geteuid() != 0:
        raise ConfigError(field, "to run as root, which network namespaces need", f"user {os.geteuid()}")
    if shutil.which("ip") is None:
        raise ConfigError(field, "the program ip (package iproute2)", "none in PATH")
    if not (folder / place.namespace).exists():
        raise ConfigError(field, f"a namespace in {folder}", place.namespace)
