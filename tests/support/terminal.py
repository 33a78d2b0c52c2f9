"""A process on a terminal of its own, typed at and read as a person would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

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

    def wait_idle(self, timeout_s: float = 60.0) -> None:
        """Until the process sleeps and has for a moment: Ctrl-C typed between a prompt and the wait behind it is seen
        only with the next key (readline's select, in CPython)."""
        until = time.monotonic() + timeout_s
        before, idle = -1, 0
        while idle < 3:
            if time.monotonic() > until:
                raise AssertionError("the process does not come to rest")
            time.sleep(0.02)
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
            used = int(fields[11]) + int(fields[12])
            idle = idle + 1 if fields[0] == "S" and used == before else 0
            before = used

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

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "colibri.cli.main", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=own_terminal,
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
