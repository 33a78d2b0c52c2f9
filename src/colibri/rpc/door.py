"""The door: one thread through which the calls of strangers pass, to be refused or let in.

A pool would wake a thread for each, and a thousand calls at once would fight with the serving threads for the
interpreter's lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

_log = logging.getLogger(__name__)


class Door(ThreadPoolExecutor):
    """Runs functions on one thread. They must not wait for anything.

    It is a ThreadPoolExecutor only because grpc takes nothing else; nobody gets its results.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._done: Future[Any] = Future()
        self._done.set_result(None)
        self._thread = threading.Thread(target=self._serve, name="colibri-door", daemon=True)

    def open(self) -> None:
        """Starts with the functions that it was given, and then runs those that come."""
        self._thread.start()

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self._calls.put(lambda: call(*arguments, **named))
        return self._done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._calls.put(None)
        super().shutdown(wait=wait, cancel_futures=cancel_futures)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception:
                _log.exception("unexpected error before a call")
