"""Signals and the log line: how every verb ends when it is told to, and how it speaks meanwhile."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType


class Terminated(BaseException):
    """SIGTERM arrived: contexts close on the way out. Not an Exception, so that nothing takes it for a
    failure."""


def end_on_sigterm() -> None:
    """From now on SIGTERM unwinds the main thread, as Ctrl-C does. Only the main thread may set this."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _raise_terminated)


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated


def say(line: str) -> None:
    """One line on stderr, whole even when several threads speak."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
