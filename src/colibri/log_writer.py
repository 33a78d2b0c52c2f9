"""Write lines to a descriptor that may stop taking them, without ever making a caller wait.

A log is a pipe, a terminal or a file: nobody may read it, its disk may be full, its reader may be gone. Threads that
do the work hand their lines over here; one thread of its own writes them. What finds no room is dropped and counted,
and the count is told in the log itself as soon as it takes lines again.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from colibri.deadline import Clock

#: What may wait for its reader, in bytes: some 2,000 lines.
LIMIT_BYTES = 256 << 10
_POLL_MS = 1000


@dataclass(frozen=True, slots=True)
class _Piece:
    """missing: 0, or what this piece tells: how many lines are not there."""

    data: bytes
    missing: int = 0


class LogWriter:
    """Lines for one descriptor, which it neither owns nor closes. Any thread may call, a signal handler too.

    limit_bytes: what may wait; None: any amount, so that nothing is dropped for want of room. failed: hears of each
    error of writing, on the writer's thread.
    """

    def __init__(
        self,
        fd: int,
        limit_bytes: int | None = LIMIT_BYTES,
        *,
        failed: Callable[[OSError], None] = lambda error: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._fd = fd
        self._limit = limit_bytes
        self._failed = failed
        self._clock = clock
        # A reentrant lock: a signal handler may interrupt its own thread inside `put`.
        self._changed = threading.Condition(threading.RLock())
        self._waiting: deque[_Piece] = deque()
        self._bytes = 0
        self._writing = False
        self._thread: threading.Thread | None = None
        self._closed = False
        self._dropped = 0
        # Lines that are missing behind what was taken, why, and whether it is time to try to tell it.
        self._gap, self._why, self._tell = 0, "", False
        # An error cut a line: the next one begins on a line of its own.
        self._torn = False

    @property
    def dropped(self) -> int:
        """Lines that never arrived, so far."""
        return self._dropped

    def put(self, data: bytes) -> None:
        """Takes whole lines, or drops them. Never waits."""
        if not data:
            return
        with self._changed:
            if self._closed:
                return
            self._tell = True
            if self._is_full(len(data)):
                self._miss(data, "nobody read it")
            else:
                if self._gap:
                    self._append(self._about_gap())
                self._append(_Piece(data))
            self._start()
            self._changed.notify_all()

    def flush(self, bound_s: float) -> bool:
        """Waits until all has been written, for `bound_s` seconds at most. Whether it was."""
        until = self._clock() + bound_s
        with self._changed:
            if self._waiting and self._thread is None:
                self._write_here(until)
            while self._waiting or self._writing:
                left = until - self._clock()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def close(self, bound_s: float) -> bool:
        """As `flush`; then the writer takes no more, and its thread ends as soon as it waits for nothing."""
        whole = self.flush(bound_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return whole

    def _is_full(self, more: int) -> bool:
        if self._limit is None or not self._bytes:
            return False
        # After a gap, lines are taken again once half of the room is free: one gap is told, not hundreds.
        room = self._limit // 2 if self._gap else self._limit
        return self._bytes + more > room

    def _append(self, piece: _Piece) -> None:
        self._waiting.append(piece)
        self._bytes += len(piece.data)

    def _miss(self, data: bytes, why: str) -> None:
        lines = data.count(b"\n")
        self._dropped += lines
        self._gap += lines
        self._why = why

    def _about_gap(self) -> _Piece:
        count, self._gap = self._gap, 0
        text = f"[{count} line{'' if count == 1 else 's'} of this log missing: {self._why}]\n"
        return _Piece(text.encode(), missing=count)

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name="colibri-log", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads: tried again with the next line
            return
        self._thread = thread

    def _write_here(self, until: float) -> None:
        """Where the system gives no thread: on the caller's, which may not wait for longer than `until`."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        while self._waiting and poll.poll(max(0.0, until - self._clock()) * 1000.0):
            # A pipe that polls as writable takes so many bytes without a wait.
            piece = self._waiting[0]
            try:
                taken = os.write(self._fd, piece.data[: select.PIPE_BUF])
            except OSError:
                return
            self._bytes -= taken
            if taken == len(piece.data):
                self._waiting.popleft()
            else:
                self._waiting[0] = replace(piece, data=piece.data[taken:])

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                while not self._waiting:
                    if self._gap and self._tell:
                        self._tell = False
                        self._append(self._about_gap())
                    elif self._closed:
                        return
                    else:
                        self._changed.wait()
                self._writing = True
                piece = self._waiting.popleft()
            error = self._write(piece.data)
            with self._changed:
                self._bytes -= len(piece.data)
                if error is not None and piece.missing:
                    self._gap += piece.missing
                elif error is not None:
                    self._miss(piece.data, error.strerror or type(error).__name__)
            if error is not None:
                self._failed(error)

    def _write(self, data: bytes) -> OSError | None:
        rest = memoryview(b"\n" + data if self._torn else data)
        whole = len(rest)
        try:
            while rest:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except BlockingIOError:  # whoever shares this description made it non-blocking
                    poll = select.poll()
                    poll.register(self._fd, select.POLLOUT)
                    poll.poll(_POLL_MS)
        except OSError as error:
            self._torn = self._torn or len(rest) < whole
            return error
        self._torn = False
        return None
