"""The folder of a launcher's sockets: one per launcher, removed when it closes.

A killed launcher cannot clean up, so the next one does. Each folder holds a lock file, and the kernel frees the
lock with its
owner: a folder whose lock is free belongs to nobody.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path

from colibri.address import MAX_UNIX_PATH
from colibri.errors import ConfigError

_PREFIX = "colibri-run-"
_LOCK = "owner.lock"
#: What mkdtemp puts behind the prefix.
_DRAWN = 8
#: A deployment that lives long gives many incarnations.
_DIGITS = 5


class RunFolder:
    """A new private folder (mode 0700) below `parent`, by default the system's folder for temporary files.

    Raises ConfigError if none can be made.
    """

    def __init__(self, parent: Path | None = None) -> None:
        try:
            root = Path(tempfile.gettempdir()) if parent is None else parent
            sweep(root)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
        except OSError as error:
            raise ConfigError("TMPDIR", "a folder that can be written", error) from error
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def check_sockets(self, names: Collection[str]) -> None:
        """Raises ConfigError if paths of sockets in this folder would be too long for the system.

        names: of the workers.
        """
        parent = self.path.parent
        longest = longest_parent(names)
        length = len(os.fsencode(parent))
        if length > longest:
            expected = (
                f"a path of at most {longest} bytes, since workers' sockets lie below it (or --transport tcp)"
            )
            raise ConfigError("TMPDIR", expected, f"{length} bytes: {parent}")

    def socket(self, name: str, incarnation: int) -> Path:
        return self.path / f"{name}.{incarnation}.sock"

    def close(self) -> None:
        """Removes the folder and all in it. May be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def longest_parent(names: Collection[str]) -> int:
    """Returns how many bytes the path of the folder for temporary files may have, so that workers' sockets fit below
    it.

    names: of the workers.
    """
    name = max((len(os.fsencode(name)) for name in names), default=0)
    return MAX_UNIX_PATH - len(f"/{_PREFIX}/..sock") - _DRAWN - name - _DIGITS


def sweep(root: Path) -> None:
    """Removes the folders of this user whose owner is dead. Follows no link, since all users share the folder above."""
    for folder in root.glob(f"{_PREFIX}*"):
        with contextlib.ExitStack() as opened:
            try:
                held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                opened.callback(os.close, held)
                if os.fstat(held).st_uid != os.getuid():
                    continue
                lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=held)
                opened.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # just being made, just being removed, or its owner lives
            shutil.rmtree(folder, ignore_errors=True)
