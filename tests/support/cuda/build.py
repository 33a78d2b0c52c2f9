"""Builds the `.cu` sources of kernels/cuda for the CPU: a shared library per module, kept in build/ by what went in."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from colibri.kernels.cuda.sources import Module, headers, module_of, modules

ROOT = Path(__file__).resolve().parents[3]
HEADER = Path(__file__).parent / "cuda_on_cpu.h"
CACHE = ROOT / "build" / "cuda_on_cpu"
FLAGS = [
    "-O1",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-mfma",
    "-mf16c",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-w",
    "-DCOLIBRI_CUDA_ON_CPU",
]
SANITIZER = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g")
_LIMIT_S = 120.0
#: The emulation's state is the process's.
_ONE_AT_A_TIME = threading.Lock()


def build(
    module: Module,
    *,
    flags: tuple[str, ...] = (),
    replaced: Mapping[str, str] | None = None,
    folder: Path = CACHE,
) -> Path:
    """The library of one module. replaced: texts of sources (by file name) instead of the real ones.

    Raises RuntimeError with the compiler's words when it does not compile.
    """
    texts = {**headers(), f"{module.name}.cu": module.text, **(replaced or {})}
    used = _included(f"{module.name}.cu", texts)
    entry = _entry(module)
    digest = hashlib.sha256()
    for part in (*FLAGS, *flags, entry, HEADER.read_text(), *(f"{n}\0{texts[n]}" for n in sorted(used))):
        digest.update(part.encode() + b"\0")
    library = folder / f"{module.name}-{digest.hexdigest()[:20]}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for name in used:
            (Path(place) / name).write_text(texts[name])
        source, made = Path(place) / "entry.cpp", Path(place) / "made.so"
        source.write_text(entry)
        command = [os.environ.get("CXX", "g++"), *FLAGS, *flags, "-I", str(HEADER.parent), "-o", str(made)]
        done = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=_LIMIT_S)
        if done.returncode:
            raise RuntimeError(f"{module.name} on the CPU: {done.stderr[-3000:]}")
        made.replace(library)
    return library


def build_all(flags: tuple[str, ...] = ()) -> dict[str, Path]:
    return {module.name: build(module, flags=flags) for module in modules()}


class Library:
    """Starts the kernels of one library."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def start(
        self, kernel: str, grid: int, threads: int, shared: int, values: list[bytes], schedule: int
    ) -> None:
        """values: the arguments' bytes. schedule: bits as in cuda_on_cpu.h."""
        count = len(values)
        buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
        pointers = (ctypes.c_void_p * count)(*(ctypes.addressof(b) for b in buffers))
        sizes = (ctypes.c_size_t * count)(*(len(value) for value in values))
        with _ONE_AT_A_TIME:
            wrong = self._library.emu_start(
                kernel.encode(),
                grid,
                threads,
                ctypes.c_size_t(shared),
                pointers,
                sizes,
                ctypes.c_size_t(count),
                schedule,
            )
        if wrong == -2:
            raise KeyError(kernel)
        if wrong:
            what = "their number" if wrong < 0 else f"the size of number {wrong}"
            raise TypeError(f"{kernel}: expected its own arguments, got {count} others: {what} is wrong")


@cache
def library_of(kernel: str, flags: tuple[str, ...] = ()) -> Library:
    return Library(build(module_of(kernel), flags=flags))


def _included(name: str, texts: Mapping[str, str]) -> set[str]:
    found = {name}
    for line in texts[name].splitlines():
        if line.startswith('#include "') and line.split('"')[1] in texts:
            found |= _included(line.split('"')[1], texts)
    return found


def _entry(module: Module) -> str:
    cases = "\n".join(
        f'  if (!strcmp(kernel, "{name}")) return emu::start({name}, grid, threads, shared, values, sizes, count);'
        for name in module.kernels
    )
    return f"""#include "{module.name}.cu"
extern "C" int emu_start(const char* kernel, unsigned grid, unsigned threads, size_t shared, void** values,
                         const size_t* sizes, size_t count, unsigned schedule) {{
  emu::schedule = schedule;
{cases}
  return -2;
}}
"""
