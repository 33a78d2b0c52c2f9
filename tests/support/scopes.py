"""Divide the tests between the processes of `make test`.

A file goes to one process, so that what its tests share is made once. Files that look at the whole machine all go to
one process, one after another. They start first, since together they take longest; unit tests, whose files take least,
come last, so that all processes end at about the same time.
"""

from __future__ import annotations

#: They count what is in /dev/shm, on the network or among all processes, or start a Ray, whose parts they look for.
WHOLE_MACHINE = (
    "tests/chaos/",
    "tests/conformance/launchers/",
    "tests/integration/rayup/",
    "tests/integration/test_chaos_network.py",
    "tests/integration/test_worker_lives.py",
)
_TOGETHER = "the whole machine"
#: Folders whose files take a second or so each come after the others.
_LATER = ("tests/conformance/", "tests/unit/")


def scope_of(nodeid: str) -> str:
    """Return the name of the scope of a test: one process runs all of a scope."""
    return _TOGETHER if nodeid.startswith(WHOLE_MACHINE) else nodeid.split("::", 1)[0]


def turn(nodeid: str) -> int:
    """Return the sort key of a test: what starts first has the smallest."""
    if nodeid.startswith(WHOLE_MACHINE):
        return 0
    return next((place for place, folder in enumerate(_LATER, 2) if nodeid.startswith(folder)), 1)
