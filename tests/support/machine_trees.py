"""Made-up machines: sysfs and proc trees written the way the kernel does, for whatever takes `Roots`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from colibri.cluster.machine.cpu_list import format_cpu_list, parse_cpu_list
from colibri.cluster.machine.topology import Roots, Topology, discover

_PROC = ("self/", "thread-self/")


class MachineTree:
    """Every method returns the tree, so that a machine reads as one expression."""

    def __init__(self, root: Path) -> None:
        self.roots = Roots(root / "sys", root / "proc")

    def write(self, path: str, text: str) -> MachineTree:
        """A file below sysfs, or below proc where the path begins with self/ or thread-self/."""
        file = (self.roots.proc if path.startswith(_PROC) else self.roots.sysfs) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        return self

    def nodes(
        self,
        *cpulists: str,
        memory_kb: int | Sequence[int] = 1024,
        distances: Sequence[str] | None = None,
        ids: Sequence[int] | None = None,
    ) -> MachineTree:
        """A node for each CPU list, with ids 0, 1, ... unless told; all CPUs are online. memory_kb 0: a node without
        memory."""
        ids = range(len(cpulists)) if ids is None else ids
        memory = [memory_kb] * len(cpulists) if isinstance(memory_kb, int) else memory_kb
        self.write("devices/system/node/online", format_cpu_list(ids))
        self.write(
            "devices/system/node/has_memory",
            format_cpu_list(n for n, kb in zip(ids, memory, strict=True) if kb),
        )
        self.write(
            "devices/system/cpu/online",
            format_cpu_list(cpu for text in cpulists for cpu in parse_cpu_list(text)),
        )
        for index, (node, cpulist) in enumerate(zip(ids, cpulists, strict=True)):
            folder = f"devices/system/node/node{node}"
            row = " ".join("10" if other == node else "21" for other in ids)
            self.write(f"{folder}/cpulist", cpulist)
            self.write(f"{folder}/distance", row if distances is None else distances[index])
            self.write(
                f"{folder}/meminfo",
                f"Node {node} MemTotal:       {memory[index]} kB\nNode {node} MemFree: 1 kB",
            )
        return self

    def siblings(self, *cores: tuple[int, ...]) -> MachineTree:
        for core in cores:
            for cpu in core:
                self.write(
                    f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", format_cpu_list(core)
                )
        return self

    def online(self, cpus: str) -> MachineTree:
        return self.write("devices/system/cpu/online", cpus)

    def allowed(self, cpus: str, mems: str = "0-7") -> MachineTree:
        """Masks of the calling thread."""
        return self.write(
            "thread-self/status", f"Name:\tcolibri\nCpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{mems}"
        )

    def pci(self, address: str, kind: str, vendor: str, node: str | None) -> MachineTree:
        """node None: the kernel has no such file."""
        folder = f"bus/pci/devices/{address}"
        self.write(f"{folder}/class", kind).write(f"{folder}/vendor", vendor)
        return self if node is None else self.write(f"{folder}/numa_node", node)

    def gpu(self, address: str, node: str | None) -> MachineTree:
        return self.pci(address, "0x030200", "0x10de", node)

    def discover(self, affinity: Iterable[int] | None = None) -> Topology:
        return discover(self.roots, affinity)


def two_sockets(root: Path) -> MachineTree:
    """Two nodes of four cores with two hardware threads each, 64 GB and two GPUs each."""
    tree = MachineTree(root).nodes("0-3,8-11", "4-7,12-15", memory_kb=64 << 20)
    tree.siblings(*((cpu, cpu + 8) for cpu in range(8))).allowed("0-15", "0-1")
    for number, address in enumerate(("0000:17:00.0", "0000:65:00.0", "0000:ca:00.0", "0000:e3:00.0")):
        tree.gpu(address, str(number // 2))
    return tree


def eight_nodes(root: Path) -> MachineTree:
    """Eight nodes of sixteen CPUs, two sockets of four: near ones at 12, those of the other socket at 32."""
    rows = [
        " ".join("10" if a == b else "12" if a // 4 == b // 4 else "32" for b in range(8)) for a in range(8)
    ]
    lists = [f"{16 * node}-{16 * node + 15}" for node in range(8)]
    return MachineTree(root).nodes(*lists, memory_kb=32 << 20, distances=rows).allowed("0-127", "0-7")
