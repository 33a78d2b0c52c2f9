"""Compile sources to cubins with NVRTC, without a driver or a GPU, with a cache on disk."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colibri.kernels.cuda.device import INSTALL_CUPY, INSTALL_NVRTC, DeviceError
from colibri.kernels.cuda.sources import Module, headers

#: What docs/numerics.md needs (no contraction, subnormals flushed, division and root correctly rounded), and warnings.
FLAGS = (
    "--std=c++17",
    "--fmad=false",
    "--ftz=true",
    "--prec-div=true",
    "--prec-sqrt=true",
    "--extra-device-vectorization",
    "--display-error-number",
)
_DIGEST_BYTES = 32


class CompileError(DeviceError):
    """NVRTC refused a source or warned about it. The message has its log."""


def default_cache(environment: Mapping[str, str]) -> Path:
    """Returns $XDG_CACHE_HOME/colibri/cuda, else ~/.cache/colibri/cuda."""
    home = environment.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "colibri" / "cuda"


def compile_cubin(module: Module, architecture: int, cache: Path | None, driver: int = 0) -> bytes:
    """Returns the module's machine code for one architecture (90 for 9.0).

    cache: folder, created if necessary; None: no cache.
    driver: version of the driver that will load it; part of the cache's key.

    Raises CompileError for an error or a warning, DeviceError without NVRTC.
    """
    nvrtc = _nvrtc()
    key = hashlib.sha256()
    parts = (module.name, module.text, *(f"{n}\0{text}" for n, text in headers().items()), *FLAGS)
    for part in (*parts, str(architecture), repr(nvrtc.getVersion()), str(driver)):
        key.update(part.encode() + b"\0")
    path = None if cache is None else cache / f"{module.name}-sm{architecture}-{key.hexdigest()[:24]}.cubin"
    found = None if path is None else _read(path)
    if found is None:
        found = _compile(nvrtc, module, f"--gpu-architecture=sm_{architecture}", nvrtc.getCUBIN)
        if path is not None:
            _write(path, found)
    return found


def compile_ptx(module: Module, architecture: int) -> str:
    """The module's PTX, to look into. Raises as compile_cubin."""
    nvrtc = _nvrtc()
    made = _compile(nvrtc, module, f"--gpu-architecture=compute_{architecture}", nvrtc.getPTX)
    return made.decode().rstrip("\0") if isinstance(made, bytes) else made


def _nvrtc() -> Any:
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except ImportError as error:
        raise DeviceError(f"CuPy: expected it installed ({INSTALL_CUPY}), got {error}") from error
    except Exception as error:  # the loader's own types
        raise DeviceError(
            f"NVRTC: expected its library ({INSTALL_NVRTC}), got {type(error).__name__}: {error}"
        ) from error
    return nvrtc


def _compile(nvrtc: Any, module: Module, architecture: str, result: Any) -> Any:
    names = tuple(name.encode() for name in headers())
    texts = tuple(text.encode() for text in headers().values())
    program = nvrtc.createProgram(module.text, f"{module.name}.cu", texts, names)
    try:
        failed = None
        try:
            nvrtc.compileProgram(program, (*FLAGS, architecture))
        except nvrtc.NVRTCError as error:
            failed = error
        log = nvrtc.getProgramLog(program).strip("\0 \n")
        if failed is not None or log:
            raise CompileError(f"{module.name}.cu for {architecture.split('=')[1]}: {log or failed}")
        made = result(program)
        # CuPy takes the last byte for a terminator, which it is not in an ELF file.
        return made + b"\0" * (-len(made) % 8) if isinstance(made, bytes) else made
    finally:
        nvrtc.destroyProgram(program)


def _read(path: Path) -> bytes | None:
    """A cached cubin; None where there is none, or it is damaged."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, cubin = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
    return cubin if cubin and hashlib.sha256(cubin).digest() == digest else None


def _write(path: Path, cubin: bytes) -> None:
    """At once or not at all; a cache that cannot be written is none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(cubin).digest() + cubin)
        Path(name).replace(path)
    except OSError:
        return
