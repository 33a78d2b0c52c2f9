"""Measure how fast one CPU reads memory of one NUMA node, where the kernel lets us choose both."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections import Counter

from colibri.errors import ConfigError
from colibri.expert_service.pinning import nodes_of_pages, prefer_memory

#: Larger than last-level caches are, small enough to be had at once.
_BYTES = 256 << 20
_ROUNDS = 3
_TIMEOUT_S = 20.0
_SAMPLES = 64

_libc = ctypes.CDLL(None)
_libc.memchr.restype = ctypes.c_void_p
_libc.memchr.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)


def measure_read_bandwidth(cpu: int, node: int) -> float | None:
    """Returns bytes per second of one thread, the best of a few rounds (0.2 s in all); None if that CPU or that node's
    memory is not available.

    Runs on a thread of its own, so that neither its CPU nor its memory policy stays.
    """
    found: list[float] = []
    thread = threading.Thread(target=_measure, args=(cpu, node, found), name="colibri-bandwidth", daemon=True)
    thread.start()
    thread.join(_TIMEOUT_S)
    return found[0] if found else None


def _measure(cpu: int, node: int, found: list[float]) -> None:
    try:
        os.sched_setaffinity(0, {cpu})
        # Preferred, not bound: of a node that is full, the kernel would otherwise end processes.
        prefer_memory(node)
        memory = mmap.mmap(-1, _BYTES)
    except (OSError, ConfigError):
        return
    with memory:
        view = (ctypes.c_char * _BYTES).from_buffer(memory)
        try:
            start = ctypes.addressof(view)
            ctypes.memset(start, 1, _BYTES)
            pages = range(start, start + _BYTES, _BYTES // _SAMPLES)
            if Counter(nodes_of_pages(pages)).get(node) != _SAMPLES:
                return
            best = min(_seconds(start) for _ in range(_ROUNDS))
            found.append(_BYTES / best)
        finally:
            del view  # or the mapping could not be closed


def _seconds(start: int) -> float:
    begun = time.perf_counter()
    _libc.memchr(start, 2, _BYTES)  # not there: it reads all of it
    return time.perf_counter() - begun
