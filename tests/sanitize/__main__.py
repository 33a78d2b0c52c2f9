"""`make sanitize`: the tests of native code over native modules with the address and undefined-behaviour sanitisers.

The Makefile builds them into build/sanitized. Every process of the tests loads them (hook/), and
ends with a report at the first fault. Arguments are given to pytest; without paths, those of `PATHS` are run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "sanitized"
PATHS = (
    "tests/sanitize",
    "tests/unit/wire",
    "tests/unit/transport",
    "tests/unit/kernels",
    "tests/unit/models/test_pack.py",
    "tests/unit/models/test_pack_scales.py",
    "tests/unit/models/test_safetensors_file.py",
    "tests/conformance/kernels",
    "tests/conformance/transport",
    "tests/fuzz",
)
#: Of what pytest collects there: kernels for CUDA have a build with sanitisers of their own (tests/conformance/cuda).
LEFT_OUT = ("tests/unit/kernels/cuda",)


def environment() -> dict[str, str]:
    """Of processes that load the modules. Raises RuntimeError where the compiler has no sanitisers."""
    compiler = os.environ.get("CXX", "g++")
    preloaded = []
    # The C++ library too: the sanitisers look for what throws exceptions before Python loads it.
    for library in ("libasan.so", "libstdc++.so"):
        command = [compiler, f"-print-file-name={library}"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(found).is_absolute():
            raise RuntimeError(f"{library}: expected it with {compiler}, which has none")
        preloaded.append(found)
    return {
        **os.environ,
        "SANITIZED_MODULES": str(BUILT),
        "PYTHONPATH": str(Path(__file__).parent / "hook"),
        "LD_PRELOAD": ":".join(preloaded),
        # Leaks: Python itself frees little at its end.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # Every object is a block of its own, whose bounds are watched.
        "PYTHONMALLOC": "malloc",
    }


def main(arguments: list[str]) -> int:
    sanitized = environment()
    if not BUILT.is_dir():
        print(f"{BUILT} is missing: run `make sanitize`", file=sys.stderr)
        return 1
    paths = [] if any(not argument.startswith("-") for argument in arguments) else list(PATHS)
    # A report goes past Python to stderr, right before the end: it must not be captured.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--capture=sys",
        *(f"--ignore={path}" for path in LEFT_OUT),
        *paths,
        *arguments,
    ]
    return subprocess.run(command, cwd=ROOT, env=sanitized, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
