"""How `make test` divides the tests between processes (pytest-xdist): a file is one process's, so that what its tests
share is made once, and files that look at the whole machine are all the same process's, one after another."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

#: They count what is in /dev/shm, on the network or among all processes, or start a Ray, whose parts they look for.
WHOLE_MACHINE = (
    "tests/chaos/",
    "tests/conformance/launchers/",
    "tests/integration/rayup/",
    "tests/integration/test_chaos_network.py",
    "tests/integration/test_worker_lives.py",
)
_TOGETHER = "the whole machine"


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """What all goes to one process."""
    return _TOGETHER if nodeid.startswith(WHOLE_MACHINE) else nodeid.split("::", 1)[0]
