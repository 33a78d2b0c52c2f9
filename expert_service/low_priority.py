"""Work at a low CPU priority, beside requests that run.

On Linux each thread has its own nice value, and a new thread inherits that of the thread that starts it (man 7
sched). Lowering the priority needs no right, raising it does. So a lowered thread ends with its work, and must not
start threads that stay.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

#: A tenth of the CPU time of a thread of usual priority, and any of those runs at once when it wakes. At 19 a worker
#: did not come up in minutes on a machine whose CPUs were all taken.
LOWERED = 10
#: After each item the thread rests so many times as long as that took, at most so many seconds: priority shares out CPU
#: time, but nothing shares out the bandwidth of memory, which decode needs whole. Longer rests (2, 4) made longer gaps
#: on a virtual machine that gives free memory back to its host within 2 s: a slow load has to fetch it again page by
#: page, a quick one takes what the last life of the worker left.
_REST = 0.5
_LONGEST_REST_S = 0.1

T = TypeVar("T")


def call_lowered(function: Callable[[], T]) -> T:
    """Runs a function to its end on a thread of low priority. Returns or raises what it does."""
    return next(iterate_lowered(function() for _ in range(1)))


def iterate_lowered(items: Iterable[T]) -> Iterator[T]:
    """Yields the same items, made on a thread of low priority. If the iterator is closed early, that thread ends after
    its current item.
    """
    made: SimpleQueue[_Made[T]] = SimpleQueue()
    closed = threading.Event()
    threading.Thread(target=_make, args=(items, made, closed), name="colibri-lowered", daemon=True).start()
    try:
        while True:
            item = made.get()
            if item.error is not None:
                raise item.error
            if item.end:
                return
            yield item.value[0]
    finally:
        closed.set()


class _Made(Generic[T]):
    """An item, the error that ended the items, or their end."""

    __slots__ = ("end", "error", "value")

    def __init__(self, *value: T, error: BaseException | None = None) -> None:
        self.value = value
        self.error = error
        self.end = not value


def _make(items: Iterable[T], made: SimpleQueue[_Made[T]], closed: threading.Event) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWERED)
        iterator = iter(items)
        begun = time.monotonic()
        for item in iterator:
            made.put(_Made(item))
            if closed.is_set():
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()
                return
            time.sleep(min(_REST * (time.monotonic() - begun), _LONGEST_REST_S))
            begun = time.monotonic()
    except BaseException as error:  # raised where the items are used
        made.put(_Made(error=error))
    else:
        made.put(_Made())
