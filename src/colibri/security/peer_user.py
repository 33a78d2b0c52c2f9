"""Find out which user of this machine holds the other end of a loopback connection. The kernel shows it for every
socket.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_FOLDER = Path("/proc/net")
#: As gRPC names its peers: ipv4:127.0.0.1:40000, ipv6:%5B::1%5D:40000.
_PEER = re.compile(r"ipv[46]:(?:%5B|\[)?(?P<host>[0-9A-Fa-f.:]+?)(?:%5D|\])?:(?P<port>\d+)")
_ESTABLISHED = "01"
#: Columns of /proc/net/tcp (man 5 proc).
_LOCAL, _STATE, _USER, _INODE = 1, 3, 7, 9

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def users_of(peer: str, folder: Path = _FOLDER) -> frozenset[int]:
    """Returns the users of all sockets that may be the peer's; empty if no such socket is open.

    There is more than one only if several connections of this machine leave from the same address. A socket counts
    while it is established; the kernel shows one that its process has closed as root's. Raises OSError if the
    kernel's tables cannot be read.
    """
    found = _PEER.fullmatch(peer)
    if found is None:
        return frozenset()
    address, port = ipaddress.ip_address(found["host"]), int(found["port"])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    plain = mapped or address
    # A socket for both families is in the second table, also where it speaks IPv4.
    forms: dict[str, list[IpAddress]] = {
        "tcp": [plain] if plain.version == 4 else [],
        "tcp6": [ipaddress.IPv6Address(f"::ffff:{plain}") if plain.version == 4 else plain],
    }
    wanted = {f"{_as_kernel(form)}:{port:04X}" for table in forms.values() for form in table}
    return frozenset(
        int(words[_USER])
        for name in forms
        for words in _rows(folder / name)
        if words[_LOCAL] in wanted and words[_STATE] == _ESTABLISHED and words[_INODE] != "0"
    )


def _rows(table: Path) -> Iterator[list[str]]:
    try:
        text = table.read_text("ascii")
    except FileNotFoundError:
        if table.name == "tcp6":  # a kernel without IPv6
            return
        raise
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) > _INODE:
            yield words


def _as_kernel(address: IpAddress) -> str:
    """Writes each 32 bits as a number in this machine's byte order."""
    packed = address.packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
