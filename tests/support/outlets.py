"""Places for a process's log that take nothing: a pipe that is full, a disk without room, a closed descriptor."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path


class FullPipe:
    """`end` takes nothing more, since nobody reads. `read` takes all that is there, and lets more in."""

    def __init__(self) -> None:
        self._reader, self.end = os.pipe()
        fcntl.fcntl(self.end, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(self.end, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(self.end, b"x" * 1023 + b"\n")
        os.set_blocking(self.end, True)
        os.set_blocking(self._reader, False)

    def read(self) -> str:
        taken = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._reader, 1 << 16):
                taken += piece
        return taken.decode(errors="replace")

    def drain(self) -> threading.Thread:
        """Reads on a thread until every writer is gone."""
        os.set_blocking(self._reader, True)
        os.close(self.end)
        self.text = ""

        def run() -> None:
            while piece := os.read(self._reader, 1 << 16):
                self.text += piece.decode(errors="replace")

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        for fd in (self._reader, self.end):
            with contextlib.suppress(OSError):
                os.close(fd)


@contextlib.contextmanager
def full_disk(folder: Path) -> Iterator[int]:
    """A file on a file system of 64 KiB, which another file has filled. Raises PermissionError where nothing can be
    mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise PermissionError(errno.EPERM, "a tmpfs cannot be mounted here", str(folder))
    try:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            filler = os.open(folder / "filler", os.O_WRONLY | os.O_CREAT)
            with contextlib.suppress(OSError):
                while True:
                    os.write(filler, b"x" * 4096)
            os.close(filler)
            yield log
        finally:
            os.close(log)
    finally:
        subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
