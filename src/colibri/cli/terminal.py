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


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated


class StopSignals:
    """For services: the first SIGTERM or SIGINT asks for the orderly end, the second ends the process where
    it stands, after `abandon`, which must take no lock."""

    def __init__(self, abandon: Callable[[], None] = lambda: None) -> None:
        self._abandon = abandon
        self._number = 0
        # An eventfd: a handler that takes a lock could wait for the very code that it interrupts.
        self._asked = os.eventfd(0, os.EFD_CLOEXEC)
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    def wait(self) -> int:
        """The signal's number, as soon as one has come."""
        os.read(self._asked, 8)
        return self._number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._number:
            self._abandon()
            os._exit(128 + number)
        self._number = number
        os.eventfd_write(self._asked, 1)


def say(line: str) -> None:
    """One line on stderr, whole even when several threads speak."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
