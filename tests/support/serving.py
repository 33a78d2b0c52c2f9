"""`colibri serve` as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.clusters import BACKEND
from tests.support.short import short


class Serving:
    """A running `colibri serve`, its ready line read."""

    def __init__(self, process: subprocess.Popen[str], err: Path, target: str) -> None:
        self.process, self.err, self.target = process, err, target

    def workers(self) -> list[int]:
        return sorted(workers_among(children_of(self.process.pid)))

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


def children_of(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def workers_among(pids: list[int]) -> list[int]:
    """Expert workers; a deployment has other processes, too."""
    return [pid for pid in pids if b"\0expert\0" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # it has just ended


@contextlib.contextmanager
def serving(
    model: Path,
    folder: Path,
    *options: str,
    listen: str = "127.0.0.1:0",
    share: bool = True,
    stderr: int | None = None,
    through: Sequence[str] = (),
) -> Iterator[Serving]:
    """share: its workers share CPUs where there are too few; stderr: in place of a file in `folder`; through: the
    command that becomes the server."""
    err = folder / "serve.err"
    command = [sys.executable, "-m", "colibri.cli.main", "serve", str(model), f"--listen={listen}", "--json"]
    with short(folder) as temporary:
        with open(err, "w") as log:
            process = subprocess.Popen(
                [*through, *command, f"--backend={BACKEND}", *(["--share-cpus"] if share else []), *options],
                stdout=subprocess.PIPE,
                stderr=log if stderr is None else stderr,
                text=True,
                env={**os.environ, "TMPDIR": str(temporary)},
            )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, err.read_text()
            yield Serving(process, err, json.loads(line)["target"])
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(30)
            assert process.stdout is not None
            process.stdout.close()
