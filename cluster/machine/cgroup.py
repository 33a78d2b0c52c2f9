"""Limits of this process's control group, from sysfs and /proc/self/cgroup; versions 1 and 2.

The roots are arguments, so that tests read made-up machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from colibri.cluster.machine.cpu_list import parse_cpu_list


def cpu_quota(sysfs: Path, proc: Path) -> float | None:
    """Returns how many CPUs' worth of time the tightest group up to the root grants (v2 `cpu.max`, v1 `cpu.cfs_*`);
    None: no limit.
    """
    limits = []
    for folder in _folders_v2(sysfs, proc):
        values = read(folder / "cpu.max").split()
        if len(values) == 2 and values[0].isdecimal() and values[1].isdecimal() and int(values[1]) > 0:
            limits.append(int(values[0]) / int(values[1]))
    for folder in _folders_v1(sysfs, proc, "cpu"):
        quota = read(folder / "cpu.cfs_quota_us").strip()
        period = read(folder / "cpu.cfs_period_us").strip()
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:  # "-1" means no limit
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_room(sysfs: Path, proc: Path) -> tuple[int, int] | None:
    """Returns (limit, used) in bytes of the group, up to the root, with the least room left; None: no limit."""
    found = []
    files = [(folder, "memory.max", "memory.current") for folder in _folders_v2(sysfs, proc)]
    files += [
        (folder, "memory.limit_in_bytes", "memory.usage_in_bytes")
        for folder in _folders_v1(sysfs, proc, "memory")
    ]
    for folder, limit_file, used_file in files:
        limit, used = read(folder / limit_file).strip(), read(folder / used_file).strip()
        # v1 spells "no limit" as the largest multiple of a page below 2^63.
        if limit.isdecimal() and int(limit) < 1 << 60:
            found.append((int(limit), int(used) if used.isdecimal() else 0))
    return min(found, key=lambda pair: pair[0] - pair[1], default=None)


def memory_kills(sysfs: Path, proc: Path) -> int | None:
    """Returns how many processes the kernel ended because the group, or one above it, ran out of memory (v2
    `memory.events`, v1 `memory.oom_control`); None: unknown.
    """
    files = [folder / "memory.events" for folder in _folders_v2(sysfs, proc)]
    files += [folder / "memory.oom_control" for folder in _folders_v1(sysfs, proc, "memory")]
    return max((count for file in files if (count := count_of(file, "oom_kill")) is not None), default=None)


def count_of(file: Path, name: str) -> int | None:
    """Returns the number after a name, in a file with one such pair per line; None: not there."""
    for line in read(file).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return None


def task_limit(sysfs: Path, proc: Path) -> int | None:
    """Returns the largest number of processes and threads (`pids.max`); None: no limit."""
    folders = [*_folders_v2(sysfs, proc), *_folders_v1(sysfs, proc, "pids")]
    limits = (read(folder / "pids.max").strip() for folder in folders)
    return min((int(limit) for limit in limits if limit.isdecimal()), default=None)


def cpuset(sysfs: Path, proc: Path, kind: str) -> frozenset[int] | None:
    """Returns the ids of the "cpus" or memory nodes ("mems") that the group may use; None: no limit, or unknown.

    The innermost group that says so is enough, since all groups above it have limited it already.
    """
    files = [folder / f"cpuset.{kind}.effective" for folder in _folders_v2(sysfs, proc)]
    for folder in _folders_v1(sysfs, proc, "cpuset"):
        files += [folder / f"cpuset.effective_{kind}", folder / f"cpuset.{kind}"]
    for file in files:
        ids = parse_cpu_list(read(file), str(file))
        if ids:
            return frozenset(ids)
    return None


def read(path: Path) -> str:
    """Returns a file's text; empty if it is missing or withheld, which callers take as "the kernel does not say"."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _folders_v2(sysfs: Path, proc: Path) -> Iterator[Path]:
    path = next((path for controllers, path in _memberships(proc) if controllers == ""), None)
    if path is not None:
        yield from _upwards(sysfs / "fs/cgroup", path)


def _folders_v1(sysfs: Path, proc: Path, controller: str) -> Iterator[Path]:
    for controllers, path in _memberships(proc):
        if controller in controllers.split(","):
            for mount in dict.fromkeys((controller, controllers)):
                yield from _upwards(sysfs / "fs/cgroup" / mount, path)


def _memberships(proc: Path) -> list[tuple[str, str]]:
    """Returns (controllers, path) of each line of /proc/self/cgroup; controllers is empty for cgroup v2."""
    fields = (line.split(":", 2) for line in read(proc / "self/cgroup").splitlines())
    return [(line[1], line[2]) for line in fields if len(line) == 3]


def _upwards(mount: Path, path: str) -> Sequence[Path]:
    """Returns the cgroup's folder and its parents up to the mount, as far as they exist.

    Inside a container the path may not be mounted.
    """
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
