"""A network on the kernel's own bridge: a veth pair for each worker, netem on both of its ends where the kernel
has it."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from colibri.bench.chaos.network.commands import run, works
from colibri.bench.chaos.network.layout import Layout
from colibri.bench.chaos.plan import LinkQuality

_INSIDE = "eth0"
#: States of a bridge's port (man 8 bridge).
_DISABLED, _FORWARDING = "0", "3"


class BridgedNetwork:
    """Constructing makes it, or leaves nothing behind."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._undo = contextlib.ExitStack()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def set_up(self, worker: str, up: bool) -> None:
        # The bridge drops the port's packets; a device that is down would tell the worker's side at once.
        state = _FORWARDING if up else _DISABLED
        run("bridge", "link", "set", "dev", self.layout.place(worker).device, "state", state)

    def shape(self, worker: str, quality: LinkQuality) -> None:
        place = self.layout.place(worker)
        for prefix in ((), ("-n", place.namespace)):
            device = _INSIDE if prefix else place.device
            run("tc", *prefix, "qdisc", "replace", "dev", device, "root", *netem(quality))

    def shape_hub(self, quality: LinkQuality) -> None:
        run("tc", "qdisc", "replace", "dev", self.layout.hub, "root", *netem(quality))

    def close(self) -> None:
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self) -> None:
        layout = self.layout
        run("ip", "link", "add", layout.hub, "type", "bridge")
        self._undo.callback(works, "ip", "link", "del", layout.hub)
        run("ip", "addr", "add", f"{layout.gateway}/{layout.prefix}", "dev", layout.hub)
        run("ip", "link", "set", layout.hub, "up")
        for place in layout.places:
            run("ip", "netns", "add", place.namespace)
            self._undo.callback(works, "ip", "netns", "del", place.namespace)
            inner = ("peer", "name", _INSIDE, "netns", place.namespace)
            run("ip", "link", "add", place.device, "type", "veth", *inner)
            # The kernel ends a namespace in its own time; the name must be free at once.
            self._undo.callback(works, "ip", "link", "del", place.device)
            run("ip", "link", "set", place.device, "master", layout.hub, "up")
            address = f"{place.address}/{layout.prefix}"
            run("ip", "-n", place.namespace, "addr", "add", address, "dev", _INSIDE)
            for device in ("lo", _INSIDE):
                run("ip", "-n", place.namespace, "link", "set", device, "up")


def netem(quality: LinkQuality) -> list[str]:
    """Arguments of tc (man 8 tc-netem)."""
    words = ["netem", "limit", "100000", "delay", f"{quality.delay_s * 1e6:.0f}us"]
    if quality.loss:
        words += ["loss", f"{quality.loss * 100:g}%"]
    if quality.rate_bits is not None:
        words += ["rate", f"{quality.rate_bits:.0f}bit"]
    return words


def kernel_has_netem(namespace: str) -> bool:
    """Tried on the loopback device of a namespace that nobody uses yet."""
    return works("tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
