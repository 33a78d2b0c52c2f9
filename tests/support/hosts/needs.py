"""Whether hosts can be made here."""

from __future__ import annotations

import shutil

from colibri.bench.chaos.network.build import why_not as why_no_network
from colibri.bench.chaos.network.commands import works

#: program -> Debian package
_PROGRAMS = {
    "/usr/sbin/sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "rsync": "rsync",
    "ps": "procps",
    "ip": "iproute2",
    "bridge": "iproute2",
    "unshare": "util-linux",
}


def why_not() -> str:
    """Why this process cannot make hosts; empty where it can."""
    missing = sorted({package for program, package in _PROGRAMS.items() if shutil.which(program) is None})
    if missing:
        return f"hosts need {', '.join(missing)} (apt-get install)"
    if reason := why_no_network():
        return reason
    if not works("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "true"):
        return "mount and process namespaces do not work here"
    return ""
