"""Limits of this process: open files, processes, and those of its control group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from colibri.cli.checks.finding import Finding, fail, ok, warn
from colibri.cli.checks.machine import Machine
from colibri.cluster.machine.cgroup import task_limit

AREA = "limits"
#: (wanted, needed): below the first a warning, below the second nothing works. A connection is one open file, and
#: each worker has about twenty threads.
_FILES = (4096, 256)
_TASKS = (2048, 256)


def limits(machine: Machine) -> Mapping[str, tuple[str, str]]:
    """Name -> (soft, hard) of /proc/self/limits, numbers or 'unlimited'."""
    lines = machine.proc_text("self/limits").splitlines()[1:]
    found = (re.match(r"(.+?)\s{2,}(\S+)\s+(\S+)", line) for line in lines)
    return {match[1]: (match[2], match[3]) for match in found if match}


def check(machine: Machine) -> Iterator[Finding]:
    found = limits(machine)
    yield _judge(found, "Max open files", "open files", _FILES, "-n", "nofile", 65536)
    yield _judge(found, "Max processes", "processes", _TASKS, "-u", "nproc", 32768)
    tasks = task_limit(machine.sysfs, machine.proc)
    name, why = "tasks of the control group", "each worker has about twenty threads"
    mend = "docker update --pids-limit=32768 CONTAINER (systemd: TasksMax=32768)"
    if tasks is None:
        yield ok(AREA, name, "no limit")
    elif tasks < _TASKS[1]:
        yield fail(AREA, name, str(tasks), why, mend)
    elif tasks < _TASKS[0]:
        yield warn(AREA, name, str(tasks), why, mend)
    else:
        yield ok(AREA, name, str(tasks))


def _judge(
    found: Mapping[str, tuple[str, str]],
    field: str,
    name: str,
    bounds: tuple[int, int],
    flag: str,
    item: str,
    good: int,
) -> Finding:
    soft, hard = found.get(field, ("not told", "not told"))
    value = f"{soft} (up to {hard})" if hard != soft else soft
    if not soft.isdecimal() or int(soft) >= bounds[0]:
        return ok(AREA, name, value)
    reachable = not hard.isdecimal() or int(hard) >= bounds[0]
    wanted = min(good, int(hard)) if hard.isdecimal() else good
    mend = f"ulimit {flag} {wanted}"
    if not reachable:
        mend = (
            f"echo '* - {item} {good}' > /etc/security/limits.d/colibri.conf (Docker: --ulimit {item}={good})"
        )
    if int(soft) < bounds[1]:
        return fail(AREA, name, value, f"at least {bounds[1]} are needed", mend)
    return warn(AREA, name, value, f"{bounds[0]} or more are wanted for many clients and workers", mend)
