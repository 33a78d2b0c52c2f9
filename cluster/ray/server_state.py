"""What the keeper of a server writes down about it: files on the head that can be read without Ray."""

from __future__ import annotations

import fcntl
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from colibri.cluster.ray.file_lock import is_locked
from colibri.cluster.ray.record import read_fields, write_whole

#: In the log's line about the end of a life.
ENDED = "--- the server "
#: Of the log, in one answer.
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ServerState:
    """phase: 'starting', 'serving', 'failed' (no restart can help) or 'stopped'.
    target, pid: of the present server, once it serves.
    why: how it failed.
    keeper: process that keeps it.
    log: the file on the head.
    """

    phase: str
    target: str = ""
    pid: int = 0
    why: str = ""
    keeper: int = 0
    log: str = ""


class ServerFiles:
    """The files of one server of this machine, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / "server.json"
        self._lock = folder / "server.lock"
        self._grace = folder / "server.grace"

    def hold(self) -> bool:
        """Makes this process the server's keeper. Returns False if another one is."""
        self._lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._grace.unlink(missing_ok=True)
        return True

    def is_kept(self) -> bool:
        return is_locked(self._lock)

    def write(self, state: ServerState) -> None:
        write_whole(self._state, asdict(state))

    def read(self) -> ServerState | None:
        fields = read_fields(self._state)
        try:
            return None if fields is None else ServerState(**fields)
        except TypeError:
            return None

    def ask_grace(self, grace_s: float) -> None:
        """Writes how long running requests may take. Call it before telling the keeper to stop."""
        write_whole(self._grace, {"grace_s": grace_s})

    def grace_s(self, usual: float) -> float:
        fields = read_fields(self._grace) or {}
        asked = fields.get("grace_s", usual)
        return float(asked) if isinstance(asked, int | float) else usual


def log_lines(log: Path, offset: int) -> tuple[int, str]:
    """Returns (next offset, text) of whole lines from a byte offset; negative: from this many bytes before the end."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size + offset) if offset < 0 else min(offset, size)
            file.seek(start)
            text = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return 0, ""
    whole = text[: text.rfind(b"\n") + 1]
    return start + len(whole), whole.decode(errors="replace")
