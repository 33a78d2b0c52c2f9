"""The native code on aarch64: everything compiles, and the portable path gives x86-64's bits.

Compiled by a cross compiler where there is one (`apt-get install g++-aarch64-linux-gnu`), run by an emulator of user
programs where there is one (`apt-get install qemu-user-static`): `make aarch64` tells what is missing.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CPU = ROOT / "kernels" / "cpu"
SOURCES = [
    path
    for folder in (CPU, ROOT / "src" / "colibri" / "transport", ROOT / "src" / "colibri" / "wire")
    for path in sorted(folder.glob("*.cpp"))
]
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64-static"
#: As the build has them (CMakeLists.txt); a warning is an error.
FLAGS = (
    "-std=c++17",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
)
RANGES = ("ordinary", "wide", "tiny")  # of portable_bits.cpp

needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER) is None,
    reason=f"{COMPILER} is missing: apt-get install g++-aarch64-linux-gnu",
)
needs_emulator = pytest.mark.skipif(
    shutil.which(EMULATOR) is None, reason=f"{EMULATOR} is missing: apt-get install qemu-user-static"
)


def compile_object(source: Path, out: Path) -> str:
    """What the compiler says; an object for aarch64 when that is nothing."""
    # Python's and nanobind's headers are the same on every 64-bit Linux.
    where = [sys.executable, "-m", "nanobind", "--include_dir"]
    nanobind = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
    includes = [f"-I{nanobind}", f"-I{sysconfig.get_path('include')}"]
    command = [
        COMPILER,
        *FLAGS,
        *includes,
        "-O0",
        "-fPIC",
        "-c",
        str(source),
        "-o",
        str(out / f"{source.stem}.o"),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stderr


@needs_compiler
def test_everything_compiles(tmp_path: Path) -> None:
    assert {"native.cpp", "isa_portable.cpp", "ring.cpp", "codec.cpp"} <= {path.name for path in SOURCES}
    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(lambda source: compile_object(source, tmp_path), SOURCES))
    assert "".join(said) == ""
    machines = {path.read_bytes()[18:20] for path in tmp_path.glob("*.o")}  # e_machine of ELF
    assert machines == {b"\xb7\0"}
    assert len(list(tmp_path.glob("*.o"))) == len(SOURCES)


@needs_compiler
def test_what_does_not_compile_is_told(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.cpp"
    wrong.write_text("#include <immintrin.h>\n")
    assert "immintrin.h" in compile_object(wrong, tmp_path)


@needs_compiler
@needs_emulator
@pytest.mark.skipif(platform.machine() != "x86_64", reason="compares with x86-64's bits")
def test_the_portable_path_gives_the_same_bits(tmp_path: Path) -> None:
    program = [str(Path(__file__).with_name("portable_bits.cpp")), str(CPU / "isa_portable.cpp"), f"-I{CPU}"]
    printed = []
    # No optimisation here, some there: that changes no bit either.
    for compiler, level, runner in (("g++", "-O0", []), (COMPILER, "-O1", [EMULATOR])):
        binary = tmp_path / compiler
        command = [compiler, *FLAGS, level, "-static", *program, "-o", str(binary)]
        subprocess.run(command, check=True, timeout=180)
        done = subprocess.run([*runner, str(binary)], capture_output=True, text=True, timeout=120, check=True)
        printed.append(done.stdout.splitlines())
    here, there = printed
    assert [line.split()[1] for line in here].count("tiny") == len(here) // len(RANGES) >= 12
    assert len({line.split()[2] for line in here}) == len(here)
    assert there == here
