"""Memory, limits, graphics, network, storage on made-up machines; each verdict with what mends it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from colibri.cli.checks import graphics, limits, memory, network, storage
from colibri.cli.checks.finding import Finding, Verdict
from colibri.cli.checks.machine import Machine
from colibri.errors import ConfigError
from tests.unit.cli.checks.machines import GOOD, machine, named

Check = Callable[[Machine], Iterator[Finding]]
MEMINFO = GOOD["proc/meminfo"]
LIMITS = GOOD["proc/self/limits"]


def limit(name: str, soft: object, hard: object) -> dict[str, str | None]:
    return {"proc/self/limits": f"{LIMITS.splitlines()[0]}\n{name:<26}{soft:<21}{hard:<21}x"}


def no_memfd() -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("check", [memory.check, limits.check, graphics.check, storage.check])
def test_a_good_machine(tmp_path: Path, check: Check) -> None:
    assert {finding.verdict for finding in check(machine(tmp_path))} == {Verdict.OK}


@pytest.mark.parametrize(
    ("check", "changes", "fields", "name", "verdict", "mend"),
    [
        (
            memory.check,
            {"proc/meminfo": MEMINFO.replace("12582912", "1048576")},
            {},
            "room",
            Verdict.WARN,
            "ps -eo",
        ),
        (memory.check, {"proc/meminfo": None}, {}, "room", Verdict.WARN, "mount -t proc"),
        (
            memory.check,
            {"sys/fs/cgroup/job/memory.max": "2147483648", "sys/fs/cgroup/job/memory.current": "0"},
            {},
            "room",
            Verdict.WARN,
            "docker update --memory",
        ),
        (
            memory.check,
            {"sys/fs/cgroup/memory.max": "8589934592", "sys/fs/cgroup/memory.current": "7516192768"},
            {},
            "room",
            Verdict.WARN,
            "docker update --memory",
        ),
        (memory.check, {"sys/fs/cgroup/job/memory.max": "max"}, {}, "room", Verdict.OK, ""),
        (
            memory.check,
            {"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"},
            {},
            "huge pages",
            Verdict.WARN,
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        (
            memory.check,
            {"sys/kernel/mm/transparent_hugepage/enabled": None},
            {},
            "huge pages",
            Verdict.WARN,
            "",
        ),
        (
            memory.check,
            {"sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise madvise [never]"},
            {},
            "huge pages",
            Verdict.WARN,
            "transparent_hugepage/defrag",
        ),
        (
            memory.check,
            {"proc/meminfo": MEMINFO.replace("HugePages_Free: 0", "HugePages_Free: 1024")},
            {},
            "huge pages",
            Verdict.WARN,
            "sysctl -w vm.nr_hugepages=0",
        ),
        (
            memory.check,
            {"proc/sys/vm/overcommit_memory": "2"},
            {},
            "over-commitment",
            Verdict.WARN,
            "vm.overcommit_memory=0",
        ),
        (
            memory.check,
            {"proc/meminfo": MEMINFO.replace("SwapTotal: 0", "SwapTotal: 2097152")},
            {},
            "swap",
            Verdict.WARN,
            "swapoff -a",
        ),
        (memory.check, {}, {"memfd": no_memfd}, "shared memory", Verdict.WARN, "seccomp"),
        (memory.check, {"dev/shm/keep": None}, {}, "/dev/shm", Verdict.WARN, "mount -t tmpfs"),
        (memory.check, {}, {"free_bytes": lambda path: 64 << 20}, "/dev/shm", Verdict.WARN, "--shm-size"),
        (
            limits.check,
            limit("Max open files", 1024, 1048576),
            {},
            "open files",
            Verdict.WARN,
            "ulimit -n 65536",
        ),
        (limits.check, limit("Max open files", 1024, 8192), {}, "open files", Verdict.WARN, "ulimit -n 8192"),
        (
            limits.check,
            limit("Max open files", 1024, 1024),
            {},
            "open files",
            Verdict.WARN,
            "limits.d/colibri.conf",
        ),
        (
            limits.check,
            limit("Max open files", 128, "unlimited"),
            {},
            "open files",
            Verdict.FAIL,
            "ulimit -n 65536",
        ),
        (limits.check, limit("Max open files", "unlimited", "unlimited"), {}, "open files", Verdict.OK, ""),
        (limits.check, limit("Max processes", 1000, 1000), {}, "processes", Verdict.WARN, "* - nproc 32768"),
        (limits.check, {"proc/self/limits": None}, {}, "processes", Verdict.OK, ""),
        (
            limits.check,
            {"sys/fs/cgroup/job/pids.max": "512"},
            {},
            "tasks of the control group",
            Verdict.WARN,
            "--pids-limit",
        ),
        (
            limits.check,
            {"proc/self/cgroup": "8:pids:/c", "sys/fs/cgroup/pids/c/pids.max": "100"},
            {},
            "tasks of the control group",
            Verdict.FAIL,
            "--pids-limit",
        ),
        (
            storage.check,
            {},
            {"free_bytes": lambda path: 1 << 30},
            "home",
            Verdict.WARN,
            "export COLIBRI_HOME=",
        ),
        (storage.check, {}, {"temp": Path("/proc/self")}, "temporary files", Verdict.FAIL, "export TMPDIR="),
    ],
)
def test_verdicts(
    tmp_path: Path,
    check: Check,
    changes: dict[str, str | None],
    fields: dict[str, Any],
    name: str,
    verdict: Verdict,
    mend: str,
) -> None:
    found = named(list(check(machine(tmp_path, changes, **fields))), name)
    assert found.verdict is verdict
    assert mend in found.mend if mend else found.mend == ""
    assert found.why or verdict is Verdict.OK


def test_values(tmp_path: Path) -> None:
    found = list(memory.check(machine(tmp_path)))
    assert named(found, "room").value == "12.9 GB available of 17.2 GB"
    assert named(found, "locked memory").value == "limit 8.39 MB, locked now 12.3 kB"
    assert named(found, "huge pages").value == "transparent: madvise, defrag: madvise"


def test_no_home_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    fresh = named(list(storage.check(machine(tmp_path / "a"))), "home")
    assert fresh.verdict is Verdict.OK
    assert not (tmp_path / "a/home").exists()
    barred = machine(tmp_path / "b", environ={"COLIBRI_HOME": "/proc/nobody/writes"})
    found = named(list(storage.check(barred)), "home")
    assert found.verdict is Verdict.FAIL
    assert "/proc cannot be written" in found.why


def test_socket_paths_that_are_too_long(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    found = named(list(storage.check(machine(tmp_path / "m", temp=long))), "socket paths")
    assert found.verdict is Verdict.FAIL
    assert "TMPDIR=/tmp" in found.mend


def test_addresses(tmp_path: Path) -> None:
    def bind(listen: str) -> None:
        if listen.endswith("51"):
            raise ConfigError("port", "an address that can be bound", f"{listen} (Address already in use)")

    taken, free = network.check(machine(tmp_path, bind=bind), ["127.0.0.1:50051", "127.0.0.1:50052"])
    assert (free.verdict, free.value) == (Verdict.OK, "free")
    assert taken.verdict is Verdict.WARN
    assert "Address already in use" in taken.why
    assert "ss -ltnp 'sport = :50051'" in taken.mend


CARD: dict[str, str | None] = {
    "sys/bus/pci/devices/0000:41:00.0/class": "0x030200",
    "sys/bus/pci/devices/0000:41:00.0/vendor": "0x10de",
    "sys/bus/pci/devices/0000:41:00.0/numa_node": "1",
    "sys/bus/pci/devices/0000:00:02.0/class": "0x020000",
    "sys/bus/pci/devices/0000:00:02.0/vendor": "0x1af4",
}
DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version: 12"
OPEN_DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 13"
)


def test_a_card_without_a_driver(tmp_path: Path) -> None:
    found = list(graphics.check(machine(tmp_path, CARD)))
    assert named(found, "cards").value == "NVIDIA at 0000:41:00.0, NUMA node 1"
    assert named(found, "driver").verdict is Verdict.WARN
    assert "nvidia-driver" in named(found, "driver").mend


@pytest.mark.parametrize(("text", "version"), [(DRIVER, "535.183.01"), (OPEN_DRIVER, "570.86.15")])
def test_a_card_with_its_driver(tmp_path: Path, text: str, version: str) -> None:
    there = {**CARD, "proc/driver/nvidia/version": text, "dev/nvidiactl": ""}
    found = list(graphics.check(machine(tmp_path, there)))
    assert named(found, "driver").value == f"NVIDIA {version}"
    assert {finding.verdict for finding in found} == {Verdict.OK}
    del there["dev/nvidiactl"]
    assert named(list(graphics.check(machine(tmp_path / "b", there))), "device files").verdict is Verdict.WARN


def test_no_card(tmp_path: Path) -> None:
    (found,) = graphics.check(machine(tmp_path))
    assert (found.verdict, found.value) == (Verdict.OK, "none")
