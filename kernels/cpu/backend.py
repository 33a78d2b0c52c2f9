"""`CpuBackend`: the API of colibri.kernels.api over the native kernels."""

from __future__ import annotations

from collections.abc import Sequence

from colibri.kernels import _native
from colibri.kernels.api import F32


class CpuBackend:
    """One instruction path and a pool of threads (docs/numerics.md says what is computed, whatever these are).

    threads: threads that compute, the calling one included. isa: 'avx512bf16', 'avx512', 'avx2' or 'portable'; None takes
    the environment's COLIBRI_ISA, else the best that this machine runs. cpus: pool thread i > 0 is pinned to
    cpus[i % len(cpus)]; the caller's affinity is left alone. Raises ValueError for an unknown or unsupported path.
    """

    def __init__(self, threads: int = 1, isa: str | None = None, cpus: Sequence[int] | None = None) -> None:
        self._native = _native.Backend(threads, isa, None if cpus is None else list(cpus))

    @property
    def name(self) -> str:
        return "cpu"

    @property
    def isa(self) -> str:
        """Instruction path in use."""
        return self._native.isa

    @property
    def fallback(self) -> str:
        """Why another path than the asked one is in use; empty in the normal case."""
        return self._native.fallback

    @property
    def threads(self) -> int:
        return self._native.threads

    def close(self) -> None:
        """Ends the pool's threads. A later call raises RuntimeError."""
        self._native.close()

    def add_inplace(self, x: F32, y: F32) -> None:
        self._native.add_inplace(x, y)
