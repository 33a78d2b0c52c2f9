"""Graphics processors and their driver. None is fine: CPUs compute as well."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from colibri.cli.checks.finding import Finding, ok, warn
from colibri.cli.checks.machine import Machine
from colibri.cluster.machine.pci import NVIDIA, UNKNOWN_NODE, display_controllers

AREA = "GPU"
_VENDORS = {NVIDIA: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}
_USE = "workers take one by `colibri expert --device cuda:N`"


def check(machine: Machine) -> Iterator[Finding]:
    cards = []
    for card in display_controllers(machine.sysfs):
        where = "" if card.node == UNKNOWN_NODE else f", NUMA node {card.node}"
        vendor = _VENDORS.get(card.vendor, f"vendor {card.vendor:#06x}")
        cards.append((vendor, f"{card.address}{where}"))
    driver = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", machine.proc_text("driver/nvidia/version") + " ")
    if not cards and driver is None:
        yield ok(AREA, "cards", "none", "CPUs compute")
        return
    yield ok(AREA, "cards", "; ".join(f"{name} at {place}" for name, place in cards) or "none", _USE)
    if any(name == "NVIDIA" for name, _ in cards) and driver is None:
        yield warn(
            AREA,
            "driver",
            "none loaded",
            "an NVIDIA card is here that nothing can use",
            "apt-get install nvidia-driver && reboot (Docker: --gpus all)",
        )
    elif driver is not None:
        yield ok(AREA, "driver", f"NVIDIA {driver[1]}")
        if not (machine.dev / "nvidiactl").exists():
            yield warn(
                AREA,
                "device files",
                "no /dev/nvidiactl",
                "the driver cannot be reached",
                "nvidia-modprobe -c 0 -u",
            )
    try:
        yield ok(AREA, "cupy", version("cupy-cuda12x"))
    except PackageNotFoundError:
        yield ok(
            AREA, "cupy", "not installed", "the extra `gpu` brings it, for `colibri expert --device cuda:N`"
        )
