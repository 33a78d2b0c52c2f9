"""`CpuBackend`: the API of colibri.kernels.api over the native kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colibri.kernels import _native
from colibri.kernels.api import F32, Array, ComputeMode, PackedExpert, PackedLinear, UnitBatch


def _to_bf16(mode: ComputeMode) -> bool:
    if not isinstance(mode, ComputeMode):
        raise TypeError(f"mode: expected a ComputeMode, got {type(mode).__name__}")
    return mode is ComputeMode.BF16


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

    def pack_linear(self, weight: Array, mode: ComputeMode) -> PackedLinear:
        return PackedLinear(*self._native.pack_linear(weight, _to_bf16(mode)))

    def pack_expert(self, gate: Array, up: Array, down: Array, mode: ComputeMode) -> PackedExpert:
        return PackedExpert(*self._native.pack_expert(gate, up, down, _to_bf16(mode)))

    def linear(self, x: Array, weight: PackedLinear) -> F32:
        out = np.empty((len(x), weight.n), np.float32)
        self._native.linear(x, weight, out)
        return out

    def expert_units(self, x: Array, experts: Sequence[PackedExpert], batch: UnitBatch) -> F32:
        out = np.empty((len(batch.unit_slots), x.shape[1]), np.float32)
        self._native.expert_units(
            x,
            experts,
            batch.group_expert,
            batch.group_count,
            batch.entry_row,
            batch.entry_slot,
            batch.entry_unit,
            batch.entry_weight,
            batch.unit_slots,
            out,
        )
        return out

    def add_inplace(self, x: F32, y: F32) -> None:
        self._native.add_inplace(x, y)
