"""Parse server addresses: "unix:/absolute/path" or "host:port" ("[v6]:port"); gRPC takes both forms unchanged."""

from __future__ import annotations

import os
import re
import socket
import stat
from dataclasses import dataclass

from colibri.errors import ConfigError

#: sun_path holds 108 bytes with its terminating zero (man 7 unix).
MAX_UNIX_PATH = 107

_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]")


@dataclass(frozen=True, slots=True)
class UnixAddress:
    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP address. port 0: the server takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_address(text: str, field: str = "address") -> Address:
    """Raises ConfigError, naming `field`, if the text is not an address."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if path.startswith("///"):
            path = path[2:]
        if not path.startswith("/") or "\0" in path:
            raise ConfigError(field, "unix: and an absolute path", text)
        if len(os.fsencode(path)) > MAX_UNIX_PATH:
            raise ConfigError(field, f"a socket path of at most {MAX_UNIX_PATH} bytes", text)
        return UnixAddress(path)
    host, colon, port = text.rpartition(":")
    if (
        not colon
        or not port.isdecimal()
        or not port.isascii()
        or int(port) > 65535
        or not _HOST.fullmatch(host)
    ):
        raise ConfigError(field, "unix:/path or host:port", text)
    return TcpAddress(host, int(port))


def claim_unix_path(path: str, field: str = "address") -> None:
    """Removes the socket file that a killed server left, so that its path can be bound.

    gRPC itself would take the path away from a live server. Raises ConfigError if a server answers there, if the
    path is something other than a socket, or if its folder does not exist.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(path)):
            raise ConfigError(field, "a socket path in a folder that exists", path) from None
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(field, "a free path or a socket that nobody serves", f"{path}, which is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            pass
        except OSError as error:
            raise ConfigError(field, "a socket that nobody serves", f"{path} ({error})") from error
        else:
            raise ConfigError(field, "a socket that nobody serves", f"{path}, where a server answers")
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
