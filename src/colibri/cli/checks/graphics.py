"""Graphics processors and their driver. None is fine: this version computes on CPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from colibri.cli.checks.finding import Finding, ok, warn
from colibri.cli.checks.machine import Machine

AREA = "GPU"
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_UNUSED = "this version computes on CPUs only"


def check(machine: Machine) -> Iterator[Finding]:
    cards = []
    for device in sorted((machine.sysfs / "bus/pci/devices").glob("*")):
        place = f"bus/pci/devices/{device.name}"
        # PCI base class 3: display controllers; of them VGA (00) and 3D (02) can compute.
        if machine.sys_text(f"{place}/class")[:6] in ("0x0300", "0x0302"):
            vendor = machine.sys_text(f"{place}/vendor")
            node = machine.sys_text(f"{place}/numa_node")
            where = f", NUMA node {node}" if node not in ("", "-1") else ""
            cards.append((_VENDORS.get(vendor, f"vendor {vendor}"), f"{device.name}{where}"))
    driver = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", machine.proc_text("driver/nvidia/version") + " ")
    if not cards and driver is None:
        yield ok(AREA, "cards", "none", _UNUSED)
        return
    yield ok(AREA, "cards", "; ".join(f"{name} at {place}" for name, place in cards) or "none", _UNUSED)
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
        yield ok(AREA, "cupy", "not installed", "the extra `gpu` would bring it; nothing needs it yet")
