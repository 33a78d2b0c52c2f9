"""Find out whether the kernel ended a process for lack of memory, by its counters before and after.

The kernel does not say why it killed a process. Its counters are those of the control group, with everything in it,
and of the machine. They show that it killed for memory meanwhile, and what the limit is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colibri.cluster.machine.cgroup import count_of, memory_kills, memory_room


@dataclass(frozen=True, slots=True)
class MemoryKills:
    """Counts of kills. group: in this process's control group; machine: on the whole machine; None: unknown."""

    group: int | None
    machine: int | None


def count_kills(sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> MemoryKills:
    return MemoryKills(memory_kills(sysfs, proc), count_of(proc / "vmstat", "oom_kill"))


def memory_death(before: MemoryKills, sysfs: Path = Path("/sys"), proc: Path = Path("/proc")) -> str:
    """Describes the end of a process that SIGKILL ended since `before`; empty if the kernel killed nothing for
    memory.
    """
    now = count_kills(sysfs, proc)
    if before.group is not None and now.group is not None and now.group > before.group:
        room = memory_room(sysfs, proc)
        limit = "" if room is None else f", {room[0]} bytes of which {room[1]} are used now,"
        return f"the memory control group{limit} was full (oom_kill {before.group} before, {now.group} now)"
    if before.machine is not None and now.machine is not None and now.machine > before.machine:
        counts = f"oom_kill of this machine: {before.machine} before, {now.machine} now"
        return f"the kernel ended a process for want of memory ({counts})"
    return ""
