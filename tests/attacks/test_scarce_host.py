"""A host that grants little: a message that says what is short, or the answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tries import Tries

ANSWER = ("--prompt-ids=1,5,9", "--max-tokens=2", "--share-cpus", "--config=none")
FULL_SHM = """
mount -t tmpfs -o size=16k tmpfs /dev/shm || exit 77
head -c 16384 /dev/zero > /dev/shm/fill
exec "$@"
"""


def generate(model: Path, *options: str, through: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "colibri.cli.main", "generate", str(model), *options, *ANSWER]
    return subprocess.run([*through, *command], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("kib", [250_000, 350_000, 450_000])
def test_little_address_space(tiny_mixtral: Path, kib: int, tries: Tries) -> None:
    through = ("sh", "-c", f'ulimit -v {kib} && exec "$@"', "sh")
    done = generate(tiny_mixtral, "--workers=0", through=through)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or (done.returncode == 1 and "memory" in done.stderr), done
    tries("a start with little memory", 1)


def test_few_descriptors(tiny_mixtral: Path, tries: Tries) -> None:
    through = ("sh", "-c", 'ulimit -n 24 && exec "$@"', "sh")
    done = generate(tiny_mixtral, "--workers=2", through=through)
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
    assert "Too many open files" in done.stderr
    tries("a start with few descriptors", 1)


def test_a_full_shared_memory(tiny_mixtral: Path, tries: Tries) -> None:
    """In a mount namespace of its own: links lie in nameless memory, locks of CPUs take no room."""
    through = ("unshare", "-m", "sh", "-c", FULL_SHM, "sh")
    done = generate(tiny_mixtral, "--workers=2", "--link=shared-memory", "--receipts", through=through)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no mount namespace can be made here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    tries("a full /dev/shm", 1)
