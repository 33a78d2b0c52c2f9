"""Another process that has CPUs, as a worker has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLDER = (
    "import sys\n"
    "from pathlib import Path\n"
    "from colibri.expert_service.cpu_locks import CpuLocks\n"
    "locks = CpuLocks(Path(sys.argv[1]))\n"
    "print(locks.take(map(int, sys.argv[3:]), share=sys.argv[2] == 'share'), flush=True)\n"
    "sys.stdin.read()\n"
)


@contextmanager
def holder(file: Path, *cpus: int, how: str = "alone") -> Iterator[subprocess.Popen[str]]:
    """Another process that has those CPUs, until the end."""
    command = [sys.executable, "-c", HOLDER, str(file), how, *map(str, cpus)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "{}\n"
        yield process
    finally:
        process.kill()
        process.wait(10)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
