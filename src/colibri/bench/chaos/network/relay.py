"""A switch in a process: carries packets between TUN devices, late, at a rate, or not at all.

    python -m colibri.bench.chaos.network.relay PORT ...

Each PORT is ADDRESS=FD, a TUN device opened with IFF_NO_PI | IFF_VNET_HDR, so that the kernel hands over what
TCP wants to send in one piece and the pieces are cut where they leave (Documentation/networking/tuntap.rst).
Standard input brings one JSON object a line: {"port": ADDRESS, "up": bool, "delay_s": float, "loss": float,
"rate_bits": float or null}; each is answered by a line on standard output. It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import os
import random
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: struct virtio_net_hdr, before every packet.
HEADER_BYTES = 10
_DESTINATION = slice(HEADER_BYTES + 16, HEADER_BYTES + 20)
_LARGEST = HEADER_BYTES + 65536
#: Ethernet, IP and TCP headers of each packet on a real wire, with preamble and gap, beside 1448 bytes of data.
_WIRE_DATA, _WIRE_EXTRA = 1448, 90
_IP_TCP_BYTES = 52
#: A port holds what it can send in this time; more is lost.
_BUFFER_S = 0.2
#: Below this the relay does not sleep: waking up would be late.
_SPIN_S = 100e-6
_AT_ONCE = 32
_PRIORITY = 10


@dataclass(slots=True)
class Port:
    """One device and both directions of its link. free_in, free_out: when the link has sent what it was
    given, from and to the device."""

    fd: int
    up: bool = True
    delay_s: float = 0.0
    loss: float = 0.0
    rate_bits: float | None = None
    free_in: float = 0.0
    free_out: float = 0.0


class Relay:
    """The switch itself. `accept` decides when a packet leaves and through which port."""

    def __init__(self, ports: dict[bytes, Port], draw: random.Random) -> None:
        self._ports = ports
        self._draw = draw
        self._queue: list[tuple[float, int, int, bytes]] = []
        self._count = 0
        self.lost = 0

    @property
    def next_due(self) -> float | None:
        return self._queue[0][0] if self._queue else None

    def configure(self, address: bytes, changes: dict[str, Any]) -> None:
        port = self._ports[address]
        for name in ("up", "delay_s", "loss", "rate_bits"):
            if name in changes:
                setattr(port, name, changes[name])

    def accept(self, source: Port, packet: bytes, now: float) -> None:
        target = self._ports.get(packet[_DESTINATION])
        if target is None or not (source.up and target.up):
            self.lost += 1
            return
        if any(port.loss and self._draw.random() < port.loss for port in (source, target)):
            self.lost += 1
            return
        bits = 8.0 * _wire_bytes(len(packet) - HEADER_BYTES)
        at = now
        if source.rate_bits is not None:
            at = source.free_in = max(at, source.free_in) + bits / source.rate_bits
        if target.rate_bits is not None:
            # Cut through: the second link begins as the first one does, unless it is busy or slower.
            spent = bits / target.rate_bits
            at = target.free_out = max(at, target.free_out + spent, now + spent)
        if at - now > _BUFFER_S:
            self.lost += 1
            return
        self._count += 1
        due = at + source.delay_s + target.delay_s
        heapq.heappush(self._queue, (due, self._count, target.fd, packet))

    def release(self, now: float) -> list[tuple[int, bytes]]:
        """What is due: (device, packet)."""
        out = []
        while self._queue and self._queue[0][0] <= now:
            _, _, fd, packet = heapq.heappop(self._queue)
            out.append((fd, packet))
        return out


def _wire_bytes(size: int) -> int:
    """Bytes that an IP packet, perhaps one to be cut into several, takes on an Ethernet."""
    pieces = max(1, -(-(size - _IP_TCP_BYTES) // _WIRE_DATA))
    return max(0, size - _IP_TCP_BYTES) + pieces * _WIRE_EXTRA


def serve(ports: dict[bytes, Port], seed: int) -> None:
    """Until standard input ends."""
    with contextlib.suppress(OSError):  # a container may not let us; the relay then is late under load
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    relay = Relay(ports, random.Random(seed))
    by_fd = {port.fd: port for port in ports.values()}
    commands = sys.stdin.fileno()
    readable = [*by_fd, commands]
    rest = b""
    while True:
        due = relay.next_due
        wait = None if due is None else due - time.monotonic()
        ready, _, _ = select.select(readable, (), (), 0 if wait is not None and wait < _SPIN_S else wait)
        for fd in ready:
            port = by_fd.get(fd)
            if port is not None:
                _drain(relay, port)
                continue
            piece = os.read(commands, 1 << 16)
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                _obey(relay, line)
        for fd, packet in relay.release(time.monotonic()):
            try:
                os.write(fd, packet)
            except OSError as error:
                # A device that is down, or full: as on a real wire, the packet is lost.
                if error.errno not in (errno.EIO, errno.EAGAIN, errno.ENOBUFS, errno.EINVAL):
                    raise
                relay.lost += 1


def _drain(relay: Relay, port: Port) -> None:
    for _ in range(_AT_ONCE):
        try:
            packet = os.read(port.fd, _LARGEST)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EIO):
                return
            raise
        relay.accept(port, packet, time.monotonic())


def _obey(relay: Relay, line: bytes) -> None:
    command = json.loads(line)
    relay.configure(socket.inet_aton(command.pop("port")), command)
    sys.stdout.write(json.dumps({"lost": relay.lost}) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    ports = {}
    for argument in arguments:
        address, _, fd = argument.partition("=")
        os.set_blocking(int(fd), False)
        ports[socket.inet_aton(address)] = Port(int(fd))
    serve(ports, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
