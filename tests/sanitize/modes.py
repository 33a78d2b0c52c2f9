"""The builds of `make sanitize`: which sanitisers, how processes are started with them, and what is run over them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Mode:
    """libraries: loaded before all others; variables: of every process; paths: what pytest runs; left_out: of what it
    finds there; marker: what an instrumented module holds."""

    name: str
    libraries: tuple[str, ...]
    variables: dict[str, str]
    paths: tuple[str, ...]
    left_out: tuple[str, ...]
    marker: bytes

    @property
    def built(self) -> Path:
        """Where the Makefile puts its modules."""
        return ROOT / "build" / "sanitized" / self.name


#: Every object is a block of its own, whose bounds are watched.
_BLOCKS = {"PYTHONMALLOC": "malloc"}
#: Kernels for CUDA have a build with sanitisers of their own (tests/conformance/cuda).
_CUDA = "tests/unit/kernels/cuda"
MODES = (
    Mode(
        "address",
        # The C++ library too: the sanitisers look for what throws exceptions before Python loads it.
        ("libasan.so", "libstdc++.so"),
        {
            # Leaks: Python itself frees little at its end.
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            **_BLOCKS,
        },
        (
            "tests/sanitize",
            "tests/unit/wire",
            "tests/unit/transport",
            "tests/unit/kernels",
            "tests/unit/models/packs/test_pack.py",
            "tests/unit/models/packs/test_scales.py",
            "tests/unit/models/test_safetensors_file.py",
            "tests/conformance/kernels",
            "tests/conformance/transport",
            "tests/attacks/test_native_threads.py",
            "tests/fuzz",
        ),
        (_CUDA,),
        b"__asan_report_load",
    ),
    Mode(
        "thread",
        ("libtsan.so", "libstdc++.so"),
        {
            # Tests start processes from threads. What Python and NumPy do is not watched, but for memory that they
            # hand to our modules.
            "TSAN_OPTIONS": "halt_on_error=1:die_after_fork=0:second_deadlock_stack=1:history_size=4"
            f":suppressions={Path(__file__).with_name('thread.supp')}",
            **_BLOCKS,
        },
        (
            "tests/sanitize",
            "tests/attacks/test_native_threads.py",
            "tests/unit/kernels/test_pool.py",
            "tests/unit/transport",
            "tests/unit/wire",
            "tests/conformance/transport",
        ),
        (),
        b"__tsan_read",
    ),
)


def environment(mode: Mode) -> dict[str, str]:
    """Of processes that load the modules. Raises RuntimeError where the compiler has no such sanitisers."""
    compiler = os.environ.get("CXX", "g++")
    preloaded = []
    for library in mode.libraries:
        command = [compiler, f"-print-file-name={library}"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(found).is_absolute():
            raise RuntimeError(f"{library}: expected it with {compiler}, which has none")
        preloaded.append(found)
    return {
        **os.environ,
        "SANITIZED": mode.name,
        "SANITIZED_MODULES": str(mode.built),
        "PYTHONPATH": str(Path(__file__).parent / "hook"),
        "LD_PRELOAD": ":".join(preloaded),
        **mode.variables,
    }
