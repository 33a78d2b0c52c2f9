"""Made-up machines: files under a temporary root, written the way the kernel does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from colibri.cli.checks.finding import Finding
from colibri.cli.checks.machine import CpuPaths, Machine

FLAGS = "fpu sse avx avx2 fma f16c avx512f avx512dq avx512bw avx512vl avx512_bf16 avx512_vnni"
GOOD = {
    "sys/devices/system/cpu/online": "0-3",
    "sys/devices/system/node/online": "0",
    "sys/devices/system/node/node0/cpulist": "0-3",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       16777216 kB",
    "sys/devices/system/node/node0/distance": "10",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "sys/devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
    "sys/kernel/mm/transparent_hugepage/defrag": "always defer defer+madvise [madvise] never",
    "proc/cpuinfo": f"processor\t: 0\nmodel name\t: Made-up CPU\nflags\t\t: {FLAGS}\n",
    "proc/sys/kernel/osrelease": "6.1.0-18-amd64",
    "proc/sys/kernel/numa_balancing": "0",
    "proc/sys/vm/overcommit_memory": "0",
    "proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n"
    "HugePages_Total: 0\nHugePages_Free: 0\nHugepagesize: 2048 kB",
    "proc/self/limits": "Limit                     Soft Limit           Hard Limit           Units     \n"
    "Max processes             62987                62987                processes \n"
    "Max open files            65536                1048576              files     \n"
    "Max locked memory         8388608              8388608              bytes     ",
    "proc/self/status": "Name:\tpython\nVmLck:\t      12 kB",
    "proc/self/cgroup": "0::/job",
    "dev/shm/keep": "",
}


def machine(root: Path, changes: dict[str, str | None] | None = None, **fields: Any) -> Machine:
    """A machine in good order, but for `changes` (None: no such file) and replaced fields."""
    for name, text in {**GOOD, **(changes or {})}.items():
        if text is not None:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
    (root / "tmp").mkdir()
    good = Machine(
        sysfs=root / "sys",
        proc=root / "proc",
        dev=root / "dev",
        environ={"COLIBRI_HOME": str(root / "home")},
        affinity=frozenset(range(4)),
        temp=Path("/tmp"),
        architecture="x86_64",
        python=(3, 12, 1),
        free_bytes=lambda path: 50 << 30,
        total_bytes=lambda path: 100 << 30,
        taken=dict,
        bind=lambda listen: None,
        memfd=lambda: None,
        cpu_paths=lambda: CpuPaths(("avx512bf16", "avx512", "avx2", "portable"), "avx512bf16"),
    )
    return replace(good, **fields)


def named(findings: list[Finding], name: str) -> Finding:
    """The one finding of that name."""
    (found,) = [finding for finding in findings if finding.name == name]
    return found
