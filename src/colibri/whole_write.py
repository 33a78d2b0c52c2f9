"""Write to a file that somebody else reads later: all of it or nothing, and never without a bound."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import time
from pathlib import Path

#: Longest wait for a reader, where the file is a pipe or a terminal.
BOUND_S = 30.0
_AGAIN_S = 0.05


def append_whole(path: Path, data: bytes, *, mode: int = 0o666, bound_s: float = BOUND_S) -> None:
    """Adds `data` to the end of a file, in one write where the kernel takes it as one, so that two writers do not mix.

    Raises OSError, with the file's name. A regular file then is as it was before: no half of a record stays. What a
    pipe's reader does not take within `bound_s` is TimeoutError.
    """
    _put(path, data, os.O_APPEND, mode, bound_s)


def write_whole(path: Path, data: bytes, *, mode: int = 0o666, bound_s: float = BOUND_S) -> None:
    """As append_whole, in place of what the file holds. After an error a regular file is empty."""
    _put(path, data, os.O_TRUNC, mode, bound_s)


def _put(path: Path, data: bytes, how: int, mode: int, bound_s: float) -> None:
    until = time.monotonic() + bound_s
    fd = _open(path, how, mode, until)
    try:
        _write(fd, path, data, until)
    finally:
        os.close(fd)


def _open(path: Path, how: int, mode: int, until: float) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | how
    while True:
        try:
            return os.open(path, flags, mode)
        except OSError as error:
            if error.errno != errno.ENXIO:  # a named pipe that nobody has opened to read
                raise
        if time.monotonic() >= until:
            raise _unread(path)
        time.sleep(_AGAIN_S)


def _write(fd: int, path: Path, data: bytes, until: float) -> None:
    before = os.fstat(fd)
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            left = until - time.monotonic()
            if left <= 0:
                raise _unread(path) from None
            poll = select.poll()
            poll.register(fd, select.POLLOUT)
            poll.poll(1000 * left)
        except OSError as error:
            _take_back(fd, before, len(data) - len(rest))
            raise OSError(error.errno, error.strerror, str(path)) from error


def _take_back(fd: int, before: os.stat_result, written: int) -> None:
    """Nothing where another writer has added to the file meanwhile."""
    if written and stat.S_ISREG(before.st_mode) and os.fstat(fd).st_size == before.st_size + written:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, before.st_size)


def _unread(path: Path) -> OSError:
    return TimeoutError(errno.ETIMEDOUT, "nobody reads it", str(path))
