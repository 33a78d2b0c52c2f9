"""Signals and the log line: how every verb ends when it is told to, and how it speaks meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Terminated(BaseException):
    """SIGTERM arrived: contexts close on the way out. Not an Exception, so that nothing takes it for a
    failure."""


@contextlib.contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Inside, SIGTERM unwinds the main thread as Ctrl-C does. On other threads there is nothing to set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def interrupts_kept() -> Iterator[Callable[[], None]]:
    """Inside, SIGINT raises KeyboardInterrupt as ever, and, once it has come, so does a call of what is yielded:
    CPython drops an exception that a handler raises within a callback, as of gRPC. On other threads there is
    nothing to set.
    """
    came: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        came.append(number)
        raise KeyboardInterrupt

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated


class StopSignals:
    """For services: the first SIGTERM or SIGINT asks for the orderly end, the second ends the process where
    it stands, after `abandon`, which must take no lock."""

    def __init__(self, abandon: Callable[[], None] = lambda: None) -> None:
        self._abandon = abandon
        self._number = 0
        self._asked = os.eventfd(0, os.EFD_CLOEXEC)
        # The kernel may give a signal to any thread, and Python's handlers run on the main one, which nothing
        # wakes then: the interpreter's own handler writes the number here instead, at once.
        self._numbers, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        threading.Thread(target=self._watch, name="colibri-signals", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: None)

    def wait(self) -> int:
        """The signal's number, as soon as one has come."""
        os.read(self._asked, 8)
        return self._number

    def _watch(self) -> None:
        while True:
            (number,) = os.read(self._numbers, 1)
            if number not in (signal.SIGTERM, signal.SIGINT):
                continue
            if self._number:
                self._abandon()
                os._exit(128 + number)
            self._number = number
            os.eventfd_write(self._asked, 1)


def say(line: str) -> None:
    """One line on stderr, whole even when several threads speak."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
