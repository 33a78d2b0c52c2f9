"""Lock CPUs: which worker of this host has which CPU. All workers open one file, so that none pins to another's CPU.

Byte n of the file stands for CPU n. The locks are the kernel's (man 2 fcntl, F_SETLK): they end with the process,
however it ends, and show who holds them. A process opens the file once, since closing any descriptor of it would
give up all its locks. Workers that share CPUs take read locks, so that a worker that wants a CPU alone sees them.
"""

from __future__ import annotations

import fcntl
import functools
import os
import stat
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from colibri.errors import ConfigError

#: Overrides where the file is; NONE: workers take no notice of one another.
VARIABLE = "COLIBRI_CPU_LOCKS"
OPTION = "--cpu-locks"
NONE = "none"
#: One for all users of the host, in memory, and of the same life as the processes: a boot empties it.
DEFAULT_FILE = Path("/dev/shm/colibri-cpus")
_MAX_CPU = 1 << 16
#: struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")
_RETRY_S = 0.05


class CpuLocks:
    """The CPUs that this process has locked, and those that others have. `close` gives them up.

    path: the file; None: there are no locks.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError if the file cannot be opened."""
        self._fd = -1 if path is None else _open(path)

    def taken(self) -> dict[int, int]:
        """Returns CPU -> process id of the worker that has it; 0: a process that this one cannot see."""
        found: dict[int, int] = {}
        spans = [(0, _MAX_CPU)] if self._fd >= 0 else []
        while spans:
            first, end = spans.pop()
            blocker = self._first_blocker(first, end)
            if blocker is not None:
                low, high, pid = blocker
                found.update(dict.fromkeys(range(max(low, first), min(high, end)), pid))
                spans += [span for span in ((first, low), (high, end)) if span[0] < span[1]]
        return found

    def take(
        self,
        cpus: Iterable[int],
        *,
        share: bool = False,
        on_behalf: int = 0,
        wait_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> dict[int, int]:
        """Locks all of `cpus` or none. Returns the CPUs that others have, with their process ids; empty: this process
        may use all.

        share: take shared locks; a CPU that another process locked for itself alone is then used by both.
        on_behalf: a process that may hold the locks for this one, and then keeps them.
        wait_s: how long to wait for others, seconds.
        """
        wanted = sorted(set(cpus)) if self._fd >= 0 else []
        until = clock() + wait_s
        while True:
            got = []
            for cpu in wanted:
                if not self._lock(cpu, fcntl.LOCK_SH if share else fcntl.LOCK_EX) and not share:
                    break
                got.append(cpu)
            else:
                return {}
            for cpu in got:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, cpu)
            taken = self.taken()
            others = {cpu: taken[cpu] for cpu in wanted if cpu in taken} or {wanted[len(got)]: 0}
            if set(others.values()) == {on_behalf} and on_behalf:
                return {}
            if clock() >= until:
                return others
            sleep(_RETRY_S)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock(self, cpu: int, kind: int) -> bool:
        try:
            fcntl.lockf(self._fd, kind | fcntl.LOCK_NB, 1, cpu)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _first_blocker(self, first: int, end: int) -> tuple[int, int, int] | None:
        """Returns (first, end, pid) of a lock that another process holds within the span, or None."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, end - first, 0)
        kind, _, start, length, pid = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_GETLK, asked))
        if kind == fcntl.F_UNLCK:
            return None
        return start, _MAX_CPU if length == 0 else start + length, max(0, pid)


def whose(taken: Mapping[int, int], proc: Path = Path("/proc")) -> str:
    """Describes CPUs that processes of other users have, and how to ignore their locks; empty if there are none.

    The file is open to all users, so a stranger may hold its locks for as long as it likes.
    """
    own = os.geteuid()
    users: dict[int, int] = {}
    for pid in set(taken.values()) - {0}:
        try:
            user = (proc / str(pid)).stat().st_uid
        except OSError:
            continue  # it has just ended
        if user not in (own, 0):
            users[pid] = user
    if not users:
        return ""
    who = ", ".join(f"process {pid} of user {user}" for pid, user in sorted(users.items()))
    return f"; {who} is among those who have them: {OPTION} {NONE} takes no notice of anybody"


def host_locks(environ: Mapping[str, str]) -> CpuLocks:
    """Returns the locks of this host, or of the file that the environment names.

    For one file it is always the same object, which is never closed.
    """
    named = environ.get(VARIABLE, "")
    return _locks(None if named == NONE else Path(named) if named else DEFAULT_FILE)


@functools.cache
def _locks(path: Path | None) -> CpuLocks:
    return CpuLocks(path)


def _open(path: Path) -> int:
    """Opens the file, readable and writable for all users, whoever created it; never through a link."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            # Without O_CREAT: in a sticky folder the kernel may refuse that for another user's file.
            return _regular(os.open(path, flags), path)
        except FileNotFoundError:
            fd = os.open(path, flags | os.O_CREAT, 0o666)
            os.fchmod(fd, 0o666)  # whatever the umask
            return fd
    except OSError as error:
        raise ConfigError(
            OPTION, f"a file that can be opened, or {NONE}", f"{path} ({error.strerror})"
        ) from error


def _regular(fd: int, path: Path) -> int:
    """Checks that this is a regular file: another user may have put something else there. Raises ConfigError."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise ConfigError(OPTION, f"a regular file, or {NONE}", path)
