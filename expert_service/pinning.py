"""Where this process runs and where its memory lies: asked of the kernel, and read back from it.

Linux system calls by number (x86-64 and arm64 tables of the kernel sources); libnuma is not needed for three
calls. Imports no NumPy: binding comes before anything that starts threads or touches memory.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from colibri.errors import ConfigError, WorkerLost

#: (set_mempolicy, move_pages)
_SYSCALLS = {"x86_64": (238, 279), "aarch64": (237, 239)}
_MPOL_BIND = 2
_PR_SET_PDEATHSIG = 1
_MAX_NODES = 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Pages looked at in one read-back, spread evenly over all weights.
SAMPLED_PAGES = 512

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Buffer(Protocol):
    """An array's memory (numpy.ndarray)."""

    @property
    def nbytes(self) -> int: ...

    @property
    def __array_interface__(self) -> Mapping[str, object]: ...


@dataclass(frozen=True, slots=True)
class Placed:
    """Read back from the kernel. pages_by_node: sampled pages on each NUMA node, -1: not in memory."""

    pid: int
    cpus: tuple[int, ...]
    pages_by_node: Mapping[int, int]


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when the thread that started it ends (man 2 PR_SET_PDEATHSIG).

    Raises WorkerLost when the parent has ended already.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        raise WorkerLost(f"the parent process {parent_pid} is gone", peer=f"pid {parent_pid}")


def pin_cpus(cpus: Sequence[int]) -> None:
    """Restricts every thread of this process, and all that they start later, to `cpus`; none: leaves all as
    it is.

    Raises ConfigError when the kernel refuses.
    """
    if not cpus:
        return
    for task in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(task), cpus)
        except ProcessLookupError:
            continue
        except OSError as error:
            allowed = sorted(os.sched_getaffinity(0))
            raise ConfigError(
                "cpus", f"CPUs of this machine, of {allowed}", f"{list(cpus)} ({error})"
            ) from error


def bind_memory(node: int) -> None:
    """New pages of this thread, and of threads that it starts, come from one NUMA node; -1: leaves all as it
    is.

    Raises ConfigError when the kernel refuses.
    """
    if node < 0:
        return
    if node >= _MAX_NODES:
        raise ConfigError("numa_node", f"-1 to {_MAX_NODES - 1}", node)
    mask = (ctypes.c_ulong * (_MAX_NODES // 64))()
    mask[node // 64] = 1 << node % 64
    # The kernel takes one bit less than maxnode says.
    if _libc.syscall(_number(0), _MPOL_BIND, mask, ctypes.c_ulong(_MAX_NODES + 1)) != 0:
        raise ConfigError(
            "numa_node", "a node of this machine", f"{node} ({os.strerror(ctypes.get_errno())})"
        )


def read_placement(buffers: Sequence[Buffer]) -> Placed:
    """CPUs this process may run on, and the NUMA nodes of a sample of the buffers' pages."""
    cpus = tuple(sorted(os.sched_getaffinity(os.getpid())))
    return Placed(os.getpid(), cpus, nodes_of_pages(sample_pages(buffers, SAMPLED_PAGES)))


def sample_pages(buffers: Sequence[Buffer], limit: int) -> list[int]:
    """Addresses of at most `limit` pages, spread evenly over the buffers."""
    spans = [(_address(buffer), buffer.nbytes) for buffer in buffers if buffer.nbytes]
    total = sum(size for _, size in spans)
    step = max(_PAGE, -(-total // limit)) if total else _PAGE
    pages: list[int] = []
    skip = 0
    for address, size in spans:
        pages.extend((address + offset) // _PAGE * _PAGE for offset in range(skip, size, step))
        skip = (skip - size) % step
    return pages[:limit]


def nodes_of_pages(pages: Sequence[int]) -> dict[int, int]:
    """How many pages lie on each NUMA node; -1: not in memory. Empty where the kernel does not tell."""
    if not pages:
        return {}
    addresses = (ctypes.c_void_p * len(pages))(*pages)
    status = (ctypes.c_int * len(pages))()
    count = ctypes.c_ulong(len(pages))
    if _libc.syscall(_number(1), 0, count, addresses, None, status, 0) != 0:
        return {}
    return dict(Counter(max(-1, node) for node in status))


def _address(buffer: Buffer) -> int:
    data = buffer.__array_interface__["data"]
    if not isinstance(data, tuple):
        raise TypeError("buffer: expected an array with an address")
    return int(data[0])


def _number(which: int) -> int:
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        raise ConfigError(
            "numa_node", f"-1 on {platform.machine()}, whose system calls are not known", "another"
        )
    return numbers[which]
