"""Where the workers of a deployment run: NUMA nodes, threads, devices, and what they may share."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

AUTO = "auto"
CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True, slots=True)
class PinningOptions:
    """Where workers run on this machine. A tuple has one value for all workers, or one for each.

    numa_nodes: NUMA node of the worker. None: chosen by the free cores of each node.
    cpu_threads: compute threads of the worker. None: an even share of its node's free cores.
    share: let workers have the same CPUs and GPUs and take turns where there are too few. False: refuse.
    cross_node: let a worker's CPUs and memory lie on different nodes. False: refuse.
    devices: "cpu", "cuda" (a GPU of its own), "cuda:N" (number on the PCI bus), or "auto" for all workers.
    locks: file by which the workers of a host lock their CPUs, or "none". None: as the environment says.
    """

    numa_nodes: tuple[int | None, ...] = (None,)
    cpu_threads: tuple[int | None, ...] = (None,)
    share: bool = False
    cross_node: bool = False
    devices: tuple[str, ...] = (CPU,)
    locks: str | None = None


def use_locks(locks: str | None, environ: MutableMapping[str, str]) -> None:
    """Sets the lock file of this process and of the workers that it starts.

    locks: as PinningOptions has it; None changes nothing.
    """
    if locks is not None:
        environ["COLIBRI_CPU_LOCKS"] = locks
