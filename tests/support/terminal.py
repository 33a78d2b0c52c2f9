"""A process on a terminal of its own, typed at and read as a person would."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator

#: Takes stdin as its controlling terminal and becomes the program. Not a preexec_fn: that forks, and gRPC, once it was
#: used, may hold a process that forks for ever.
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""

CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.text = ""
        self._master = master
        self._seen = 0

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str, timeout_s: float = 60.0) -> str:
        """Reads on until `text` comes; returns what came before it since the last time."""
        until = time.monotonic() + timeout_s
        while (at := self.text.find(text, self._seen)) < 0:
            if not self._read(until):
                raise AssertionError(f"{text!r} did not come; {self.text[self._seen :]!r} did")
        found, self._seen = self.text[self._seen : at], at + len(text)
        return found

    def end(self, timeout_s: float = 60.0) -> int:
        """The exit code; all output is read first, since a full terminal would hold the process."""
        until = time.monotonic() + timeout_s
        while self._read(until):
            pass
        return self.process.wait(max(0.1, until - time.monotonic()))

    def _read(self, until: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # EIO: the other side is closed
            return False
        self.text += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)


@contextlib.contextmanager
def colibri_on_terminal(*arguments: str, env: dict[str, str] | None = None) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-IS", "-c", _TAKE_TERMINAL, sys.executable, "-m", "colibri.cli.main", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**os.environ, "TERM": "dumb", **(env or {})},
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)
        os.close(master)
