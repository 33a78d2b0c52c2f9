"""How every verb ends when it is told to: SIGINT, SIGTERM, and what Python does with them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType


class Terminated(BaseException):
    """SIGTERM arrived: contexts close on the way out. Not an Exception, so that nothing takes it for a
    failure."""


@contextlib.contextmanager
def handlers_run() -> Iterator[None]:
    """Inside, a handler that Python knows runs soon after its signal. By itself it waits until the main thread comes
    back to the interpreter, which takes for ever if the signal came just before that thread began to wait (as
    between a prompt and the select behind it), or if the kernel gave it to another thread. So a thread here, told by
    the interpreter's wake-up descriptor, wakes the main one with SIGURG, which is harmless, until it has come back.
    On other threads there is nothing to set.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    main = threading.get_ident()
    # Signals are handled in the order of their numbers, so once SIGURG was, whatever came before it was as well.
    # A plain number: a handler that takes a lock may interrupt its own holder.
    woken = 0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal woken
        woken += 1

    def wake(number: int) -> None:
        before, pause_s = woken, 0.01
        while number != signal.SIGURG and woken == before:
            signal.pthread_kill(main, signal.SIGURG)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.2)

    handler = signal.signal(signal.SIGURG, note)
    stop = _listen(wake)
    try:
        yield
    finally:
        woken += 1
        stop()
        signal.signal(signal.SIGURG, handler)


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
        _listen(self._heard)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, frame: None)

    def wait(self) -> int:
        """The signal's number, as soon as one has come."""
        os.read(self._asked, 8)
        return self._number

    def _heard(self, number: int) -> None:
        if number not in (signal.SIGTERM, signal.SIGINT):
            return
        if self._number:
            self._abandon()
            os._exit(128 + number)
        self._number = number
        os.eventfd_write(self._asked, 1)


def _listen(heard: Callable[[int], None]) -> Callable[[], None]:
    """Calls `heard`, on a thread of its own, with the number of every signal that Python handles, at once and
    whichever thread the kernel gave it to; what it returns ends that."""
    numbers, wake = os.pipe()
    os.set_blocking(wake, False)

    def listen() -> None:
        with open(numbers, "rb", buffering=0) as source:
            while came := source.read(1):
                heard(came[0])

    def stop() -> None:
        if (now := signal.set_wakeup_fd(before)) != wake:  # whoever came later, as StopSignals, keeps it
            signal.set_wakeup_fd(now, warn_on_full_buffer=False)
        os.close(wake)

    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    threading.Thread(target=listen, name="colibri-signals", daemon=True).start()
    return stop
