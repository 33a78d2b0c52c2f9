"""Whether somebody holds a file's lock (flock), which the kernel drops with its owner."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def is_locked(path: Path) -> bool:
    """Whether somebody holds the file's lock; False if there is no such file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
