from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from colibri.cli.checks.finding import Verdict
from colibri.cli.checks.machine import CpuPaths
from colibri.cli.checks.processor import check
from colibri.errors import ConfigError
from tests.unit.cli.checks.machines import machine, named

OLD = "fpu sse avx avx2 fma f16c"
CPUINFO = "processor\t: 0\nmodel name\t: M\nflags\t\t: "


def paths(*supported: str, chosen: str = "", **rest: str) -> dict[str, Any]:
    return {"cpu_paths": lambda: CpuPaths(supported, chosen or supported[0], **rest)}


def test_a_good_machine(tmp_path: Path) -> None:
    found = list(check(machine(tmp_path)))
    assert {finding.verdict for finding in found} == {Verdict.OK}
    assert named(found, "architecture").value == "x86_64, Made-up CPU"
    assert named(found, "features").value == " ".join(
        ["avx512_bf16", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx2", "fma", "f16c", "avx512_vnni"]
    )
    assert named(found, "kernel path").value == "avx512bf16"
    assert named(found, "threads").value == "CPUs 0-3: 4 threads of 4 cores; 4 may run"
    assert named(found, "NUMA").value == "node 0: CPUs 0-3, 17.2 GB"


def test_why_no_better_path(tmp_path: Path) -> None:
    plain = machine(tmp_path / "a", {"proc/cpuinfo": CPUINFO + OLD}, **paths("avx2", "portable"))
    found = named(list(check(plain)), "kernel path")
    assert (found.verdict, found.value) == (Verdict.OK, "avx2")
    assert found.why == (
        "no avx512bf16: this CPU lacks avx512_bf16; "
        "no avx512: this CPU lacks avx512f, avx512dq, avx512bw, avx512vl"
    )


def test_portable_only(tmp_path: Path) -> None:
    virtual = machine(tmp_path, {"proc/cpuinfo": CPUINFO + "sse hypervisor"}, **paths("portable"))
    found = named(list(check(virtual)), "kernel path")
    assert found.verdict is Verdict.WARN
    assert "-cpu host" in found.mend
    assert "no avx2: this CPU lacks avx2, fma, f16c" in found.why


def test_a_path_that_was_asked_for(tmp_path: Path) -> None:
    asked = machine(
        tmp_path, environ={"COLIBRI_ISA": "avx2"}, **paths("avx512bf16", "avx512", "avx2", chosen="avx2")
    )
    found = named(list(check(asked)), "kernel path")
    assert (found.verdict, found.mend) == (Verdict.WARN, "unset COLIBRI_ISA")
    assert "avx512bf16 is here, but COLIBRI_ISA=avx2 asks for another" in found.why


def test_a_failed_self_test(tmp_path: Path) -> None:
    broken = machine(
        tmp_path,
        **paths("avx512bf16", "avx512", chosen="avx512", fallback="avx512bf16: the start-up self-test found"),
    )
    found = named(list(check(broken)), "kernel path")
    assert found.verdict is Verdict.WARN
    assert found.why.startswith("avx512bf16: the start-up self-test found")


def test_no_kernels(tmp_path: Path) -> None:
    found = named(
        list(check(machine(tmp_path, cpu_paths=lambda: CpuPaths((), "", error="cannot be loaded")))),
        "kernel path",
    )
    assert (found.verdict, found.why) == (Verdict.FAIL, "cannot be loaded")
    assert " -m pip install " in found.mend


@pytest.mark.parametrize(
    ("changes", "fields", "name", "verdict", "mend"),
    [
        ({}, {"architecture": "aarch64"}, "architecture", Verdict.FAIL, ""),
        ({"proc/sys/kernel/osrelease": "4.18.0-553.el8"}, {}, "kernel", Verdict.FAIL, "apt-get install"),
        ({"proc/sys/kernel/osrelease": "5.3.1"}, {}, "kernel", Verdict.OK, ""),
        (
            {"sys/fs/cgroup/job/cpu.max": "150000 100000"},
            {},
            "threads",
            Verdict.WARN,
            "docker update --cpus=4",
        ),
        ({"sys/fs/cgroup/job/cpu.max": "400000 100000"}, {}, "threads", Verdict.OK, ""),
        ({"sys/fs/cgroup/job/cpu.max": "max 100000"}, {}, "threads", Verdict.OK, ""),
        ({}, {"affinity": frozenset({2})}, "threads", Verdict.WARN, "two CPUs"),
        (
            {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet"},
            {},
            "clock",
            Verdict.WARN,
            "echo tsc >",
        ),
        (
            {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave"},
            {},
            "frequency",
            Verdict.WARN,
            "cpupower frequency-set -g performance",
        ),
        (
            {
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
                "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver": "intel_pstate",
            },
            {},
            "frequency",
            Verdict.OK,
            "",
        ),
    ],
)
def test_verdicts(
    tmp_path: Path,
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


TWO_NODES: dict[str, str | None] = {
    "sys/devices/system/node/online": "0-1",
    "sys/devices/system/node/node0/cpulist": "0-1",
    "sys/devices/system/node/node1/cpulist": "2-3",
    "sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:       8388608 kB",
}


def test_numa(tmp_path: Path) -> None:
    good = named(list(check(machine(tmp_path / "a", TWO_NODES))), "NUMA")
    assert (good.verdict, good.value) == (Verdict.OK, "node 0: CPUs 0-1, 17.2 GB; node 1: CPUs 2-3, 8.59 GB")
    moving = machine(tmp_path / "b", {**TWO_NODES, "proc/sys/kernel/numa_balancing": "1"})
    found = named(list(check(moving)), "NUMA")
    assert (found.verdict, found.mend) == (Verdict.WARN, "sysctl -w kernel.numa_balancing=0")
    half = named(list(check(machine(tmp_path / "c", TWO_NODES, affinity=frozenset({0, 1})))), "NUMA")
    assert half.verdict is Verdict.WARN
    assert "node 1: CPUs none of ours" in half.value
    apart = {
        **TWO_NODES,
        "sys/devices/system/node/node0/distance": "10 21",
        "sys/devices/system/node/node1/distance": "21 10",
        "sys/devices/system/node/node1/cpulist": "",
        "sys/devices/system/node/has_memory": "1",
        "sys/devices/system/node/node0/cpulist": "0-3",
    }
    found = named(list(check(machine(tmp_path / "e", apart))), "NUMA")
    assert (found.verdict, found.value) == (
        Verdict.OK,
        "node 0: CPUs 0-3, no memory of ours, distance 21 to 1; node 1: CPUs none of ours, 8.59 GB, distance 21 to 0",
    )
    hidden: dict[str, str | None] = dict.fromkeys(TWO_NODES)
    hidden["sys/devices/system/node/node0/meminfo"] = None
    nothing = named(list(check(machine(tmp_path / "d", hidden))), "NUMA")
    assert (nothing.verdict, nothing.value) == (Verdict.OK, "the kernel names no node")


def test_cpus_of_workers(tmp_path: Path) -> None:
    none = named(list(check(machine(tmp_path / "a"))), "locks")
    assert (none.verdict, none.value) == (Verdict.OK, "no worker has a CPU")
    some = named(list(check(machine(tmp_path / "b", taken=lambda: {0: 12, 1: 12, 99: 7}))), "locks")
    assert (some.value, some.why) == ("workers have CPUs 0-1 (process 12)", "")
    all_of_them = named(
        list(check(machine(tmp_path / "c", taken=lambda: dict.fromkeys(range(4), 0)))), "locks"
    )
    assert all_of_them.value == "workers have CPUs 0-3"
    assert "--share-cpus" in all_of_them.why

    def fail() -> dict[int, int]:
        raise ConfigError("COLIBRI_CPU_LOCKS", "a file that can be opened, or none", "/x (Permission denied)")

    hidden = named(list(check(machine(tmp_path / "d", taken=fail))), "locks")
    assert (hidden.verdict, hidden.mend) == (Verdict.FAIL, "chmod 666 /dev/shm/colibri-cpus")
    assert "/x (Permission denied)" in hidden.why
