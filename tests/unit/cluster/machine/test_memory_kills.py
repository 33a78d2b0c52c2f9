"""A death for want of memory is told as one: counters of made-up machines, and a real kill in a group of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.cluster.machine.memory_kills import MemoryKills, count_kills, memory_death
from colibri.cluster.workers.worker_process import WorkerProcess

#: Joins the group that its argument names, then takes more than it grants.
GREEDY = """
import os, sys
with open(os.path.join(sys.argv[1], "cgroup.procs"), "w") as file:
    file.write(str(os.getpid()))
kept = [b"x" * (8 << 20) for _ in range(64)]
"""
LIMIT = 32 << 20


def machine(folder: Path, memberships: str, files: dict[str, str]) -> tuple[Path, Path]:
    (folder / "proc/self").mkdir(parents=True, exist_ok=True)
    (folder / "proc/self/cgroup").write_text(memberships)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "sys", folder / "proc"


V2 = "0::/pod/one\n"
EVENTS = "sys/fs/cgroup/pod/one/memory.events"
V1 = "4:memory:/pod\n"


def test_a_group_that_was_full(tmp_path: Path) -> None:
    limits = {
        "sys/fs/cgroup/pod/one/memory.max": "1000\n",
        "sys/fs/cgroup/pod/one/memory.current": "900\n",
        "proc/vmstat": "nr_free_pages 1\noom_kill 7\n",
    }
    roots = machine(tmp_path, V2, {EVENTS: "low 0\noom 1\noom_kill 2\noom_group_kill 0\n", **limits})
    before = count_kills(*roots)
    assert before == MemoryKills(2, 7)
    assert memory_death(before, *roots) == ""
    machine(tmp_path, V2, {EVENTS: "oom_kill 3\n"})
    assert memory_death(before, *roots) == (
        "the memory control group, 1000 bytes of which 900 are used now, was full (oom_kill 2 before, 3 now)"
    )


def test_version_1_and_the_whole_machine(tmp_path: Path) -> None:
    control = "sys/fs/cgroup/memory/pod/memory.oom_control"
    roots = machine(tmp_path, V1, {control: "under_oom 0\noom_kill 0\n", "proc/vmstat": "oom_kill 0\n"})
    before = count_kills(*roots)
    machine(tmp_path, V1, {"proc/vmstat": "oom_kill 1\n"})
    assert "(oom_kill of this machine: 0 before, 1 now)" in memory_death(before, *roots)
    machine(tmp_path, V1, {control: "under_oom 0\noom_kill 1\n"})
    assert memory_death(before, *roots) == "the memory control group was full (oom_kill 0 before, 1 now)"


def test_a_kernel_that_says_nothing(tmp_path: Path) -> None:
    roots = machine(tmp_path, "", {})
    assert count_kills(*roots) == MemoryKills(None, None)
    assert memory_death(MemoryKills(None, None), *roots) == ""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A memory control group of this test's own. Skips where none can be made."""
    for parent, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = parent / f"colibri-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / limit).write_text(str(LIMIT))
            with contextlib.suppress(OSError):  # swap would take what the limit refuses
                (group / "memory.memsw.limit_in_bytes").write_text(str(LIMIT))
            yield group
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("no memory control group can be made here")


def test_a_real_kill_says_so(small_group: Path) -> None:
    before = count_kills().machine
    process = WorkerProcess(
        "w0",
        1,
        [sys.executable, "-c", GREEDY, str(small_group)],
        log=print,
        on_exit=lambda process: None,
    )
    assert process.wait_exit(60)
    process.stop(0.0)
    if before is None:
        pytest.skip("this kernel counts no such kills")
    assert "was killed by SIGKILL while it served: the kernel ended a process for want of memory" in str(
        process.lost("while it served")
    )
