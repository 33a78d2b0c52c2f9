"""Memory: how much, huge pages, over-commitment, swap, shared memory, locked memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from colibri.cli.checks.finding import Finding, ok, warn
from colibri.cli.checks.limits import limits
from colibri.cli.checks.machine import Machine
from colibri.cluster.machine.cgroup import memory_room
from colibri.deployment.sizes import size

AREA = "memory"
#: What the demo model needs with two workers: its weights once, twice for a moment, and the caches.
_DEMO_BYTES = 3 << 30
_SHM_BYTES = 1 << 30
_THP = "kernel/mm/transparent_hugepage"


def check(machine: Machine) -> Iterator[Finding]:
    meminfo = machine.meminfo()
    yield from _room(machine, meminfo)
    yield from _huge_pages(machine, meminfo)
    yield from _policy(machine, meminfo)
    yield from _shared(machine)
    locked = re.search(r"^VmLck:\s+(\d+) kB$", machine.proc_text("self/status"), flags=re.MULTILINE)
    soft, _ = limits(machine).get("Max locked memory", ("not told", ""))
    limit = size(int(soft)) if soft.isdecimal() else soft
    now = size(int(locked[1]) * 1024) if locked else "not told"
    yield ok(AREA, "locked memory", f"limit {limit}, locked now {now}", "this version locks none")


def _room(machine: Machine, meminfo: dict[str, int]) -> Iterator[Finding]:
    total, free = meminfo.get("MemTotal", 0), meminfo.get("MemAvailable", 0)
    if not total:
        yield warn(
            AREA,
            "room",
            "not told",
            "without /proc/meminfo nobody knows what fits",
            "mount -t proc proc /proc",
        )
        return
    value, left = f"{size(free)} available of {size(total)}", free
    group = memory_room(machine.sysfs, machine.proc)
    mend = "ps -eo rss,pid,comm --sort=-rss | head"
    if group is not None and group[0] < total:
        value += f"; the control group allows {size(group[0])}, {size(group[1])} used"
        if group[0] - group[1] < left:
            left = group[0] - group[1]
            mend = "docker update --memory=8g CONTAINER (Kubernetes: resources.limits.memory)"
    if left < _DEMO_BYTES:
        yield warn(AREA, "room", value, f"the demo needs {size(_DEMO_BYTES)}; larger models more", mend)
    else:
        yield ok(AREA, "room", value)


def _huge_pages(machine: Machine, meminfo: dict[str, int]) -> Iterator[Finding]:
    enabled = _chosen(machine.sys_text(f"{_THP}/enabled"))
    defrag = _chosen(machine.sys_text(f"{_THP}/defrag"))
    name, value = (
        "huge pages",
        f"transparent: {enabled or 'not in this kernel'}, defrag: {defrag or 'not told'}",
    )
    reserved = meminfo.get("HugePages_Free", 0) * meminfo.get("Hugepagesize", 0)
    if enabled in ("", "never"):
        mend = f"echo madvise > /sys/{_THP}/enabled" if enabled else ""
        yield warn(AREA, name, value, "weights on small pages are read about a fifth slower", mend)
    elif defrag == "never":
        yield warn(
            AREA,
            name,
            value,
            "weights get huge pages only where memory happens to be whole",
            f"echo madvise > /sys/{_THP}/defrag",
        )
    elif reserved >= 1 << 30:
        yield warn(
            AREA,
            name,
            f"{value}; {size(reserved)} reserved and idle",
            "Colibri uses transparent huge pages, nothing from the reserve",
            "sysctl -w vm.nr_hugepages=0",
        )
    else:
        yield ok(AREA, name, value)


def _policy(machine: Machine, meminfo: dict[str, int]) -> Iterator[Finding]:
    if machine.proc_text("sys/vm/overcommit_memory") == "2":
        yield warn(
            AREA,
            "over-commitment",
            "refused (vm.overcommit_memory = 2)",
            "mapped checkpoints count as if they were read whole",
            "sysctl -w vm.overcommit_memory=0",
        )
    else:
        yield ok(AREA, "over-commitment", "allowed")
    total = meminfo.get("SwapTotal", 0)
    used = total - meminfo.get("SwapFree", 0)
    if used > 64 << 20:
        yield warn(
            AREA, "swap", f"{size(used)} of {size(total)} used", "weights may be read from disk", "swapoff -a"
        )
    else:
        yield ok(AREA, "swap", f"{size(total)}, unused" if total else "none")


def _shared(machine: Machine) -> Iterator[Finding]:
    try:
        machine.memfd()
        yield ok(AREA, "shared memory", "memfd works", "workers of this host are reached through it")
    except OSError as error:
        yield warn(
            AREA,
            "shared memory",
            f"memfd: {error.strerror}",
            "workers are reached by gRPC alone, which is slower",
            "allow memfd_create in the container's seccomp profile",
        )
    folder = machine.dev / "shm"
    if not folder.is_dir():
        yield warn(
            AREA,
            "/dev/shm",
            "missing",
            "Ray wants it; Colibri itself does not",
            "mount -t tmpfs tmpfs /dev/shm",
        )
        return
    total, free = machine.total_bytes(folder), machine.free_bytes(folder)
    value = f"{size(free)} free of {size(total)}"
    if free < _SHM_BYTES:
        yield warn(
            AREA,
            "/dev/shm",
            value,
            "Ray keeps its objects there; Colibri's own rings lie elsewhere",
            "mount -o remount,size=2g /dev/shm (Docker: --shm-size=2g)",
        )
    else:
        yield ok(AREA, "/dev/shm", value)


def _chosen(text: str) -> str:
    """The word in brackets of a sysfs choice: `always [madvise] never`."""
    found = re.search(r"\[([^\]]+)\]", text)
    return found[1] if found else ""
