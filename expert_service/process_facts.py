"""What the kernel says about this process (man 5 proc)."""

from __future__ import annotations

import os


def open_fds() -> int:
    """Counts open file descriptors, without the one that counting opens."""
    return len(os.listdir("/proc/self/fd")) - 1


def count_threads() -> int:
    """Counts all threads, also those that Python does not know."""
    return len(os.listdir("/proc/self/task"))
