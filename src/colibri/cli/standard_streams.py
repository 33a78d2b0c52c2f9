"""Standard streams that may be closed, full, unread or ASCII only: no verb hangs on them or ends in a traceback.

stderr is a log: no thread waits for it (log_writer). stdout is for results: a verb waits for its reader, as every
command does, until a signal ends it; an error names the stream.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import os
import select
import stat
import sys
import time
from collections.abc import Callable

from colibri.log_writer import LogWriter

#: How long the end of the process waits for a reader of what was said last.
FLUSH_S = 1.0
STDOUT = "standard output"
#: A pipe that poll calls writable takes as much without waiting.
_PIPE_BUF = select.PIPE_BUF
_NULL = {0: os.O_RDONLY, 1: os.O_WRONLY, 2: os.O_WRONLY}


class LogStream(io.TextIOBase):
    """In place of sys.stderr: what logging, warnings, tracebacks and progress bars write goes to the writer."""

    def __init__(self, writer: LogWriter, encoding: str) -> None:
        super().__init__()
        self.writer = writer
        self.buffer = _LogBytes(writer)
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    def write(self, text: str) -> int:
        self.writer.put(text.encode(self._encoding, self.errors))
        return len(text)

    def flush(self) -> None:
        """Nothing: nobody waits for the log."""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2

    def isatty(self) -> bool:
        return os.isatty(2)


class _LogBytes(io.RawIOBase):
    def __init__(self, writer: LogWriter) -> None:
        super().__init__()
        self._writer = writer

    def write(self, data: object) -> int:
        raw = bytes(data)  # type: ignore[call-overload]
        self._writer.put(raw)
        return len(raw)

    def writable(self) -> bool:
        return True


class StandardOutput(io.RawIOBase):
    """Descriptor 1, whose errors name it. closed_at_start: the process began without one."""

    def __init__(self, *, closed_at_start: bool) -> None:
        super().__init__()
        self._error = errno.EBADF if closed_at_start else 0
        self._until: float | None = None
        self._gone = False
        #: The last error: argparse, for one, passes over it.
        self.failed: OSError | None = None

    def hurry(self, bound_s: float) -> None:
        """From now on the reader has `bound_s` seconds; what it does not take then is dropped."""
        self._until = time.monotonic() + bound_s

    def give_up(self) -> None:
        """Everything from now on is dropped, without an error."""
        self._gone = True

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]
        if self._gone:
            return len(view)
        if self._error:
            self.failed = OSError(self._error, os.strerror(self._error), STDOUT)
            raise self.failed
        while True:
            if self._until is not None:
                if not _writable(max(0.0, self._until - time.monotonic())):
                    self._gone = True
                    return len(view)
                view = view[:_PIPE_BUF]
            try:
                return os.write(1, view)
            except BlockingIOError:  # whoever shares this description made it non-blocking
                _writable(1.0)
            except OSError as error:
                self.failed = OSError(error.errno, error.strerror, STDOUT)
                raise self.failed from None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1

    def isatty(self) -> bool:
        return os.isatty(1)


def _writable(wait_s: float) -> bool:
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    return bool(poll.poll(1000 * wait_s))


def install() -> None:
    """Once, by the program itself, before anything else opens a file."""
    closed = {fd for fd in _NULL if _fill(fd)}
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    raw = StandardOutput(closed_at_start=1 in closed)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8" if sys.stdout is None else sys.stdout.encoding,
        errors="backslashreplace",
        line_buffering=os.isatty(1) or bool(getattr(sys.stdout, "write_through", False)),
    )
    # A copy of its own: descriptor 2 may be replaced (see keep_native_code_from_waiting).
    writer = LogWriter(os.dup(2))
    sys.stderr = LogStream(writer, "utf-8" if sys.stderr is None else sys.stderr.encoding)
    atexit.register(writer.flush, FLUSH_S)


def _fill(fd: int) -> bool:
    """Whether it was closed. It is not left so: the next file or socket would get its number, and with it what
    libraries print there."""
    try:
        os.fstat(fd)
    except OSError:
        null = os.open(os.devnull, _NULL[fd])
        if null != fd:
            os.dup2(null, fd)
            os.close(null)
        return True
    return False


def keep_native_code_from_waiting() -> None:
    """For services: gRPC's library prints to descriptor 2 by itself, from threads that serve. Where that is a pipe or a
    terminal, it becomes a non-blocking way to the same reader; what finds no room there is lost."""
    mode = os.fstat(2).st_mode
    if not (stat.S_ISFIFO(mode) or os.isatty(2)):
        return
    with contextlib.suppress(OSError):  # another user's terminal, or a pipe without a reader
        fd = os.open("/proc/self/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        os.dup2(fd, 2)
        os.close(fd)


def log_writer() -> LogWriter | None:
    """Of this process; None where the program did not install its streams, as in tests."""
    return sys.stderr.writer if isinstance(sys.stderr, LogStream) else None


def finish_output(*, hurried: bool) -> None:
    """Writes what is left for stdout. hurried: a signal ends the process, so its reader has a second. Raises
    OSError."""
    raw = _raw()
    if raw is not None and hurried:
        raw.hurry(FLUSH_S)
    if sys.stdout is not None:
        sys.stdout.flush()
    if raw is not None and raw.failed is not None:
        raise raw.failed


def drop_output() -> None:
    """After an error: Python must not try again at its end, and complain."""
    raw = _raw()
    if raw is not None:
        raw.give_up()
    else:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _raw() -> StandardOutput | None:
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw if isinstance(raw, StandardOutput) else None


def announcer(failed: Callable[[OSError], None]) -> LogWriter | None:
    """Writes lines to stdout without making anybody wait, and drops none; None where streams are not our own."""
    if _raw() is None:
        return None
    writer = LogWriter(1, None, failed=failed)
    atexit.register(writer.flush, FLUSH_S)
    return writer
