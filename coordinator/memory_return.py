"""Return memory to the system after large requests: the C library keeps freed pages while a process lives."""

from __future__ import annotations

import ctypes
import resource
import threading
from pathlib import Path

_LOOK_S = 5.0
#: Growth after which it is worth a look for what is free: trimming walks the heap.
_GROWTH_BYTES = 16 << 20


class MemoryReturn:
    """A thread that looks at this process's memory every few seconds."""

    def __init__(self, look_s: float = _LOOK_S) -> None:
        self._look_s = look_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="colibri-memory-return", daemon=True)
        try:
            self._trim = ctypes.CDLL(None).malloc_trim
        except (OSError, AttributeError):  # a C library without it
            return
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(self._look_s + 5.0)

    def _look(self) -> None:
        kept = resident_bytes()
        while not self._closed.wait(self._look_s):
            now = resident_bytes()
            if now > kept + _GROWTH_BYTES:
                self._trim(0)  # without the interpreter's lock
                kept = resident_bytes()
            else:
                kept = min(kept, now)


def resident_bytes() -> int:
    """Returns the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
