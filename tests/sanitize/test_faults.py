"""`make sanitize` finds faults: those of faults.cpp, made on purpose, in a process each."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

BUILT = os.environ.get("SANITIZED_MODULES", "")
pytestmark = pytest.mark.skipif(not BUILT, reason="needs the build of `make sanitize`")
MODULES = ("colibri.kernels._native", "colibri.transport._shared_ring", "colibri.wire._codec")
#: Function of faults.cpp and its integers -> what the report says.
FAULTS = {
    "read 8": "heap-buffer-overflow",
    "read -1": "heap-buffer-overflow",
    "write 8": "heap-buffer-overflow",
    "use_after_free 3": "heap-use-after-free",
    "on_the_stack 4": "out of bounds",
    "sum 2147483647 1": "signed integer overflow",
    "shift 1 32": "shift exponent 32 is too large",
    "misaligned": "misaligned address",
}
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import _faults as faults
x = np.arange(8, dtype=np.float32)
assert (faults.read(x, 7), faults.sum(1, 2), faults.on_the_stack(3)) == (7.0, 3, 4)
print("begin", flush=True)
name, *values = sys.argv[2].split()
arrays = [x] if name in ("read", "write", "misaligned") else []
print(getattr(faults, name)(*arrays, *map(int, values)))
"""


def run(call: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, f"{BUILT}/colibri/sanitize", call]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", MODULES)
def test_the_modules_under_test_are_the_sanitised_ones(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).is_relative_to(BUILT)
    child = [sys.executable, "-c", f"import {name} as m; print(m.__file__)"]
    assert subprocess.check_output(child, text=True).strip() == module.__file__
    assert b"__asan_report_load" in Path(module.__file__).read_bytes()


@pytest.mark.parametrize("call", FAULTS)
def test_faults_are_found(call: str) -> None:
    done = run(call)
    assert done.stdout == "begin\n"
    assert done.returncode
    assert FAULTS[call] in done.stderr, done.stderr[-2000:]
    assert "faults.cpp" in done.stderr


def test_what_is_right_passes() -> None:
    done = run("read 0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "begin\n0.0\n", "")
