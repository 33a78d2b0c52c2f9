"""`python -m colibri.cluster.ray.leftovers`: what of Ray, and of Colibri under it, is still on this host, as a line of
JSON.

Looks at processes, at the sockets and folders of sockets that those make, and at shared memory. With `--end` it first
ends and removes them: Ray's own `ray stop` runs before, this is for what that leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from colibri.cluster.workers.run_folder import sweep

#: Parts of command lines of Ray's own.
_PROCESSES = (
    "raylet/raylet",
    "gcs/gcs_server",
    "ray::",
    "ray/_private/log_monitor.py",
    "ray/autoscaler/_private/monitor.py",
    "ray/dashboard/",
    "ray.util.client.server",
    "ray/_private/workers/",
    "ray/_private/runtime_env/",
)
#: Keepers of the head, which Ray did not start, and all that Ray did start of ours.
_KEEPERS = ("colibri.cluster.ray.keep_",)
_OURS = ("colibri.cli.main", "colibri.cluster.ray.")
#: In the environment of whatever a process of Ray has started.
_FROM_RAY = b"RAY_RAYLET_PID="
_SOCKETS = ("ray/session_*/sockets/*", "colibri-run-*")
#: What workers share with routers has no name; the lock file of the host's CPU locks is no memory and stays.
_SHARED = ("plasma*", "ray*")
_SAID = 120
_END_S = 5.0


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is left. processes: `pid command line`; sockets, shared_memory: paths. All empty: the host is clean."""

    processes: tuple[str, ...]
    sockets: tuple[str, ...]
    shared_memory: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.processes or self.sockets or self.shared_memory)

    def describe(self) -> str:
        parts = [
            f"{len(found)} {what}: {'; '.join(found)}"
            for what, found in (
                ("processes", self.processes),
                ("sockets", self.sockets),
                ("in shared memory", self.shared_memory),
            )
            if found
        ]
        return ", ".join(parts) or "nothing"


def look(
    proc: Path = Path("/proc"), temporary: Path | None = None, shared: Path = Path("/dev/shm")
) -> Leftovers:
    """Looks for leftovers. temporary: the system's folder for temporary files."""
    root = temporary or Path(tempfile.gettempdir())
    return Leftovers(
        tuple(f"{pid} {command[:_SAID]}" for pid, command in sorted(_processes(proc).items())),
        tuple(str(path) for pattern in _SOCKETS for path in _owned(root, pattern)),
        tuple(str(path) for pattern in _SHARED for path in _owned(shared, pattern)),
    )


def end(proc: Path = Path("/proc"), temporary: Path | None = None, shared: Path = Path("/dev/shm")) -> None:
    """Asks those processes to end, then forces them; removes their sockets and shared memory."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + _END_S
        for pid in _processes(proc):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while _processes(proc) and time.monotonic() < until:
            time.sleep(0.05)
    root = temporary or Path(tempfile.gettempdir())
    sweep(root)
    for base, patterns in ((root, _SOCKETS), (shared, _SHARED)):
        for pattern in patterns:
            for path in _owned(base, pattern):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def _owned(base: Path, pattern: str) -> list[Path]:
    """Returns matching paths that belong to this user, with each folder on the way. Follows no link: in a folder that
    all users share, a link may lead to files of ours that Ray did not make.
    """
    found = [base]
    for part in pattern.split("/"):
        found = [path for folder in found for path in sorted(folder.glob(part)) if _is_own(path)]
    return found


def _is_own(path: Path) -> bool:
    try:
        state = path.lstat()
    except OSError:
        return False  # it has just gone
    return state.st_uid == os.getuid() and not stat.S_ISLNK(state.st_mode)


def _processes(proc: Path) -> dict[int, str]:
    """Returns process id -> command line, without this process."""
    found = {}
    for folder in proc.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it has just ended
        ours = any(part in command for part in _OURS) and _started_by_ray(folder)
        if ours or any(part in command for part in (*_PROCESSES, *_KEEPERS)):
            found[int(folder.name)] = command
    return found


def _started_by_ray(folder: Path) -> bool:
    try:
        return _FROM_RAY in (folder / "environ").read_bytes()
    except OSError:
        return False


def main(arguments: Sequence[str]) -> int:
    if "--end" in arguments:
        end()
    print(json.dumps(asdict(look())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
