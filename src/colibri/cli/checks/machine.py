"""The machine as the checks see it: roots and probes that tests replace."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from colibri.cluster.machine.cgroup import read
from colibri.expert_service.cpu_locks import host_locks


@dataclass(frozen=True, slots=True)
class CpuPaths:
    """supported: instruction paths that this CPU runs, best first; chosen: the one in use; fallback: why a better
    one failed its self-test, empty in the normal case; error: why there is none at all."""

    supported: tuple[str, ...]
    chosen: str
    fallback: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """sysfs, proc, dev: roots; affinity: CPUs that this process may use; free_bytes: of the file system that holds
    a path; taken: CPUs that workers have, and their process ids, raises ConfigError where that cannot be told; bind:
    raises ColibriError where an address cannot be served; memfd: raises OSError where memory cannot be shared without
    a name."""

    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    dev: Path = Path("/dev")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    affinity: frozenset[int] = field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))
    temp: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    architecture: str = field(default_factory=lambda: os.uname().machine)
    python: tuple[int, int, int] = sys.version_info[:3]
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
    total_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).total
    taken: Callable[[], Mapping[int, int]] = lambda: host_locks(os.environ).taken()
    bind: Callable[[str], None] = lambda listen: _bind(listen)
    memfd: Callable[[], None] = lambda: _memfd()
    cpu_paths: Callable[[], CpuPaths] = lambda: _cpu_paths()

    def sys_text(self, path: str) -> str:
        """A file below /sys, stripped; empty where there is none."""
        return read(self.sysfs / path).strip()

    def proc_text(self, path: str) -> str:
        """A file below /proc, stripped; empty where there is none."""
        return read(self.proc / path).strip()

    def meminfo(self) -> dict[str, int]:
        """Fields of /proc/meminfo: bytes, or a count where the kernel names no unit."""
        found = {}
        for line in self.proc_text("meminfo").splitlines():
            name, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdecimal():
                found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
        return found


def _bind(listen: str) -> None:
    from colibri.cli.listen import check_free

    check_free(listen, "port")


def _memfd() -> None:
    os.close(os.memfd_create("colibri-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))


def _cpu_paths() -> CpuPaths:
    try:
        from colibri.kernels.cpu.backend import CpuBackend, supported_isas
    except ImportError as error:
        return CpuPaths((), "", error=f"the native kernels cannot be loaded: {error}")
    try:
        backend = CpuBackend(1)
    except ValueError as error:
        return CpuPaths(tuple(supported_isas()), "", error=str(error))
    found = CpuPaths(tuple(supported_isas()), backend.isa, backend.fallback)
    backend.close()
    return found
