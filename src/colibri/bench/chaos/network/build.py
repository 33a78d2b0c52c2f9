"""Makes the network that a plan needs, on the kernel's own means where they suffice."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Collection, Sequence

from colibri.bench.chaos.network.base import Network
from colibri.bench.chaos.network.bridged import BridgedNetwork, kernel_has_netem
from colibri.bench.chaos.network.commands import run, works
from colibri.bench.chaos.network.layout import Layout, lay_out
from colibri.bench.chaos.network.relayed import RelayedNetwork
from colibri.bench.chaos.plan import LinkQuality
from colibri.errors import ColibriError, ConfigError


def why_not() -> str:
    """Why this process cannot make network namespaces; empty where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"colibri-probe-{os.getpid()}"
    try:
        run("ip", "netns", "add", name)
    except ColibriError as error:
        return f"network namespaces do not work here: {error}"
    works("ip", "netns", "del", name)
    return ""


def open_network(workers: Sequence[str], quality: LinkQuality, *, shaped: bool) -> Network:
    """Each worker in a namespace of its own. shaped: links will be given other qualities later. Raises
    ConfigError without root, ColibriError for a command that fails."""
    if reason := why_not():
        raise ConfigError("network", "a machine and user that can make namespaces", reason)
    layout = _free_layout(workers)
    if quality == LinkQuality() and not shaped:
        return BridgedNetwork(layout)
    network = BridgedNetwork(layout) if _netem() else RelayedNetwork(layout)
    try:
        # The coordinator has one link of that rate; delay and loss are counted once, at the workers.
        network.shape_hub(LinkQuality(rate_bits=quality.rate_bits))
        for worker in workers:
            network.shape(worker, quality)
    except BaseException:
        network.close()
        raise
    return network


def _free_layout(workers: Sequence[str]) -> Layout:
    routes = json.loads(run("ip", "-json", "route", "show", "table", "all") or "[]")
    addresses = json.loads(run("ip", "-json", "addr") or "[]")
    taken = [str(route.get("dst", "")) for route in routes]
    taken += [str(info.get("local", "")) for device in addresses for info in device.get("addr_info", ())]
    return lay_out(_tag({str(device.get("ifname")) for device in addresses}), workers, taken)


def _tag(devices: Collection[str]) -> str:
    """Short, and such that no device of another run has it in its name."""
    for _ in range(100):
        tag = secrets.token_hex(2)
        if not any(name.startswith(f"cb{tag}") for name in devices):
            return tag
    raise ConfigError("network", "few enough networks of other runs", f"{len(devices)} devices")


def _netem() -> bool:
    name = f"colibri-probe-{os.getpid()}"
    run("ip", "netns", "add", name)
    try:
        return kernel_has_netem(name)
    finally:
        works("ip", "netns", "del", name)
