"""Cut off readers that stay away: a client that does not read holds a thread of the server in gRPC's send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from colibri.coordinator.handle import RequestHandle

_LOOK_S = 1.0


class ReaderWatch:
    """A thread that looks at all open streams once a second. Thread-safe."""

    def __init__(self, limit_s: float, look_s: float = _LOOK_S) -> None:
        self._limit_s = limit_s
        self._look_s = look_s
        self._open: dict[RequestHandle, Callable[[], object]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="colibri-reader-watch", daemon=True)
        self._thread.start()

    @contextmanager
    def watching(self, handle: RequestHandle, cut: Callable[[], object]) -> Iterator[None]:
        """Watches a handle's reader. Calls `cut`, from another thread and perhaps repeatedly, if it is away longer
        than the limit.
        """
        with self._lock:
            self._open[handle] = cut
        try:
            yield
        finally:
            with self._lock:
                del self._open[handle]

    def close(self) -> None:
        self._closed.set()
        self._thread.join(self._look_s + 5.0)

    def _look(self) -> None:
        while not self._closed.wait(self._look_s):
            with self._lock:
                away = [cut for handle, cut in self._open.items() if handle.away_s() > self._limit_s]
            for cut in away:
                cut()
