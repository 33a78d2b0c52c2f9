"""A network whose packets a relay process carries between TUN devices: any kernel with /dev/net/tun will do.

It costs CPU, since every packet passes through a process; what is compared must run on the same network.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import threading
from types import TracebackType
from typing import Self

from colibri.bench.chaos.network.commands import run, works
from colibri.bench.chaos.network.layout import Layout
from colibri.bench.chaos.plan import LinkQuality
from colibri.errors import ColibriError, ConfigError

# linux/if_tun.h
_TUNSETIFF = 0x400454CA
_TUNSETOFFLOAD = 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_ANSWER_S = 5.0


class RelayedNetwork:
    """Constructing makes it, or leaves nothing behind."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._lock = threading.Lock()
        self._undo = contextlib.ExitStack()
        try:
            self._relay = self._make()
        except BaseException:
            self.close()
            raise

    def set_up(self, worker: str, up: bool) -> None:
        self._tell({"port": self.layout.place(worker).address, "up": up})

    def shape(self, worker: str, quality: LinkQuality) -> None:
        self._tell({"port": self.layout.place(worker).address, **_fields(quality)})

    def shape_hub(self, quality: LinkQuality) -> None:
        self._tell({"port": self.layout.gateway, **_fields(quality)})

    def close(self) -> None:
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, command: dict[str, object]) -> None:
        relay = self._relay
        if relay.stdin is None or relay.stdout is None:
            raise RuntimeError("the pipes were asked for")
        with self._lock:
            try:
                relay.stdin.write((json.dumps(command) + "\n").encode())
                relay.stdin.flush()
            except OSError:
                raise ColibriError(f"the network's relay has ended with {relay.poll()}") from None
            ready, _, _ = select.select([relay.stdout], (), (), _ANSWER_S)
            if not ready or not relay.stdout.readline():
                raise ColibriError(f"the network's relay did not answer within {_ANSWER_S:g} s")

    def _make(self) -> subprocess.Popen[bytes]:
        layout = self.layout
        hub = self._open(layout.hub)
        ports = [f"{layout.gateway}={hub}"]
        fds = [hub]
        run("ip", "addr", "add", f"{layout.gateway}/{layout.prefix}", "dev", layout.hub)
        run("ip", "link", "set", layout.hub, "up")
        for place in layout.places:
            run("ip", "netns", "add", place.namespace)
            self._undo.callback(works, "ip", "netns", "del", place.namespace)
            fd = self._open(place.device)
            run("ip", "link", "set", place.device, "netns", place.namespace)
            address = f"{place.address}/{layout.prefix}"
            run("ip", "-n", place.namespace, "addr", "add", address, "dev", place.device)
            for device in ("lo", place.device):
                run("ip", "-n", place.namespace, "link", "set", device, "up")
            ports.append(f"{place.address}={fd}")
            fds.append(fd)
        relay = subprocess.Popen(
            [sys.executable, "-P", "-m", "colibri.bench.chaos.network.relay", *ports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=fds,
            start_new_session=True,
        )
        self._undo.callback(_end, relay)
        return relay

    def _open(self, name: str) -> int:
        """A TUN device that lives as long as somebody holds the descriptor."""
        try:
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError("network", "/dev/net/tun", error.strerror) from None
        self._undo.callback(os.close, fd)
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        try:
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
            fcntl.ioctl(fd, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
        except OSError as error:
            raise ColibriError(f"TUN device {name}: {error.strerror}") from None
        return fd


def _fields(quality: LinkQuality) -> dict[str, object]:
    return {"delay_s": quality.delay_s, "loss": quality.loss, "rate_bits": quality.rate_bits}


def _end(relay: subprocess.Popen[bytes]) -> None:
    for pipe in (relay.stdin, relay.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        relay.wait(2.0)
    except subprocess.TimeoutExpired:
        relay.kill()
        relay.wait(10.0)
