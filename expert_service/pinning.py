"""Bind this process to CPUs and memory, and read back from the kernel where it runs and where its memory lies.

Uses Linux system calls by number (x86-64 and arm64 tables of the kernel sources); libnuma is not needed for three
calls. Imports no NumPy: binding must come before anything that starts threads or touches memory.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from colibri.errors import ConfigError, PinningRefused, WorkerLost
from colibri.expert_service.cpu_locks import CpuLocks, whose

#: (set_mempolicy, move_pages)
_SYSCALLS = {"x86_64": (238, 279), "aarch64": (237, 239)}
_MPOL_PREFERRED = 1
_MPOL_BIND = 2
_PR_SET_PDEATHSIG = 1
_MAX_NODES = 1024
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: How long a worker waits for CPUs that another still has: one that was killed takes a moment to end.
_WAIT_S = 3.0
#: Pages looked at in one read-back, spread evenly over all weights.
SAMPLED_PAGES = 512

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

#: (number, arguments) -> (result, errno): a system call of the calling thread.
Syscall = Callable[..., tuple[int, int]]


def _syscall(number: int, *arguments: object) -> tuple[int, int]:
    result = _libc.syscall(number, *arguments)
    return result, ctypes.get_errno() if result < 0 else 0


class Pinning(Protocol):
    """A worker's node and CPUs (colibri.cluster.machine.pinning_plan.WorkerPinning)."""

    @property
    def numa_node(self) -> int: ...

    @property
    def cpus(self) -> tuple[int, ...]: ...

    @property
    def oversubscribed(self) -> bool: ...


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


def bind(place: Pinning, locks: CpuLocks) -> None:
    """Runs this process on the given CPUs from now on, and takes its new memory from the given node.

    No other worker of the host may have these CPUs; what the parent process has locked counts as locked for this
    one. Call it in the main thread before any other thread, library or large array: what exists already keeps its
    memory. `locks` must live as long as the process.

    Raises PinningRefused if another worker has a CPU and sharing was not asked for, ConfigError if the kernel
    refuses.
    """
    others = locks.take(place.cpus, share=place.oversubscribed, on_behalf=os.getppid(), wait_s=_WAIT_S)
    if others:
        who = ", ".join(f"CPU {cpu} is process {pid or 'unknown'}'s" for cpu, pid in others.items())
        raise PinningRefused(
            f"CPUs: expected {list(place.cpus)} for this worker alone, got {who}; other CPUs, or --share-cpus, with "
            f"which workers take turns{whose(others)}"
        )
    pin_cpus(place.cpus)
    bind_memory(place.numa_node)


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when the thread that started it ends (man 2 PR_SET_PDEATHSIG).

    Raises WorkerLost if the parent has ended already.
    """
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        raise WorkerLost(f"the parent process {parent_pid} is gone", peer=f"pid {parent_pid}")


def pin_cpus(cpus: Sequence[int]) -> None:
    """Restricts every thread of this process, and all threads that they start, to `cpus`; empty: changes nothing.

    Raises ConfigError if the kernel refuses.
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


def bind_memory(node: int, syscall: Syscall = _syscall) -> None:
    """Takes new pages of this thread, and of threads that it starts, from one NUMA node only (man 2 set_mempolicy,
    MPOL_BIND).

    node: -1 changes nothing. Raises ConfigError if the kernel refuses.
    """
    _set_policy(_MPOL_BIND, node, syscall)


def prefer_memory(node: int, syscall: Syscall = _syscall) -> None:
    """As bind_memory, but takes pages from other nodes if that one is full (MPOL_PREFERRED)."""
    _set_policy(_MPOL_PREFERRED, node, syscall)


def _set_policy(policy: int, node: int, syscall: Syscall) -> None:
    if node < 0:
        return
    if node >= _MAX_NODES:
        raise ConfigError("numa_node", f"-1 to {_MAX_NODES - 1}", node)
    mask = (ctypes.c_ulong * (_MAX_NODES // 64))()
    mask[node // 64] = 1 << node % 64
    # The kernel takes one bit less than maxnode says.
    result, error = syscall(_number(0), policy, mask, ctypes.c_ulong(_MAX_NODES + 1))
    if result != 0:
        raise ConfigError(
            "numa_node", "a node whose memory this process may use", f"{node} ({os.strerror(error)})"
        )


def read_placement(buffers: Sequence[Buffer]) -> Placed:
    """Returns the CPUs that this process may run on, and the NUMA nodes of a sample of the buffers' pages."""
    cpus = tuple(sorted(os.sched_getaffinity(os.getpid())))
    return Placed(os.getpid(), cpus, nodes_of_pages(sample_pages(buffers, SAMPLED_PAGES)))


def sample_pages(buffers: Sequence[Buffer], limit: int) -> list[int]:
    """Returns the addresses of at most `limit` pages, spread evenly over the buffers."""
    spans = [(_address(buffer), buffer.nbytes) for buffer in buffers if buffer.nbytes]
    total = sum(size for _, size in spans)
    step = max(_PAGE, -(-total // limit)) if total else _PAGE
    pages: list[int] = []
    skip = 0
    for address, size in spans:
        pages.extend((address + offset) // _PAGE * _PAGE for offset in range(skip, size, step))
        skip = (skip - size) % step
    return pages[:limit]


def nodes_of_pages(pages: Sequence[int], syscall: Syscall = _syscall) -> dict[int, int]:
    """Returns how many pages lie on each NUMA node (man 2 move_pages, without nodes); -1: not in memory. Empty if the
    kernel does not say.
    """
    if not pages:
        return {}
    addresses = (ctypes.c_void_p * len(pages))(*pages)
    status = (ctypes.c_int * len(pages))()
    count = ctypes.c_ulong(len(pages))
    result, _ = syscall(_number(1), 0, count, addresses, None, status, 0)
    if result != 0:
        return {}
    return dict(Counter(max(-1, node) for node in status))


def misplaced(pages_by_node: Mapping[int, int], numa_node: int) -> str:
    """Describes pages that lie on another node than the memory policy names; empty if there are none."""
    astray = {node: count for node, count in pages_by_node.items() if node >= 0 and node != numa_node}
    if numa_node < 0 or not astray:
        return ""
    seen = sum(count for node, count in pages_by_node.items() if node >= 0)
    where = ", ".join(f"{count} on node {node}" for node, count in sorted(astray.items()))
    return f"weights: expected all pages on node {numa_node}, got {where} of {seen} sampled"


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
