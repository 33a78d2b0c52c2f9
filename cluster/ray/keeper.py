"""What the keepers of a cluster's head share: processes of their own, which no process of Ray can take along."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

#: `ray stop` ends every process with "raylet" in its name, and those first: so it ends keepers, before they could take
#: the end of Ray for an accident.
NAME = b"raylet-keeper"
_PR_SET_NAME = 15


def settle_keeper() -> threading.Event:
    """Sets up the main thread of a keeper. Returns the event that SIGTERM sets."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME, 0, 0, 0)
    stop = threading.Event()

    def asked(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return stop


def start_keeper(module: str, arguments: Iterable[str], log: Path) -> subprocess.Popen[bytes]:
    """Starts a keeper in a session of its own; its output goes to `log`."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def group_of(proc: Path, group: int) -> dict[int, str]:
    """Returns the live processes of a process group: process id -> command line."""
    found = {}
    for folder in proc.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    return found
