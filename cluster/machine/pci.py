"""Display controllers on the PCI bus with their NUMA node, from sysfs; no driver and no library is asked.

Format: https://docs.kernel.org/PCI/sysfs-pci.html and ABI/testing/sysfs-bus-pci (`class`, `vendor`, `numa_node`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colibri.cluster.machine.cgroup import read

NVIDIA = 0x10DE
#: Node of what the kernel names none for: no NUMA support, a firmware that does not tell, a sandbox that hides it.
UNKNOWN_NODE = -1
#: First byte of a PCI class code; VGA (00), 3D (02) and other (80) controllers below it may all compute.
_DISPLAY = 0x03


@dataclass(frozen=True, slots=True)
class DisplayController:
    """A display controller. address: domain:bus:device.function, lower case, as CUDA's PCI bus id; node: UNKNOWN_NODE
    if unknown.
    """

    address: str
    vendor: int
    node: int


def display_controllers(sysfs: Path) -> tuple[DisplayController, ...]:
    """Returns all display controllers on the bus, in the order of their addresses."""
    found = []
    for device in sorted((sysfs / "bus/pci/devices").glob("*")):
        kind = _number(device / "class")
        if kind is not None and kind >> 16 == _DISPLAY:
            node = _number(device / "numa_node")
            # Firmware that knows nothing says -1.
            known = UNKNOWN_NODE if node is None or node < 0 else node
            found.append(DisplayController(device.name.lower(), _number(device / "vendor") or 0, known))
    return tuple(found)


def _number(path: Path) -> int | None:
    try:
        return int(read(path).strip(), 0)
    except ValueError:
        return None
