"""Find out which processes can share memory: same kernel, same process namespace, same user."""

from __future__ import annotations

import os
from pathlib import Path


def host_id(proc: Path = Path("/proc")) -> str:
    """Returns an id that is equal for two processes that can open each other's descriptors under /proc; empty if
    unknown.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink(proc / "self/ns/pid")
    except OSError:
        return ""
    return f"{boot} {namespace} uid {os.geteuid()}"
