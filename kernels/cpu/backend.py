"""`CpuBackend`: the API of colibri.kernels.api over the native kernels."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from colibri.kernels import _native
from colibri.kernels.api import (
    F32,
    U32,
    Array,
    ComputeMode,
    GatePrecision,
    GateResult,
    KvView,
    PackedExpert,
    PackedLinear,
    RopeTable,
    SamplingParams,
    UnitBatch,
)
from colibri.kernels.arithmetic.log64 import log64
from colibri.kernels.arithmetic.rope_table import build_rope_table


def _to_bf16(mode: ComputeMode) -> bool:
    if not isinstance(mode, ComputeMode):
        raise TypeError(f"mode: expected a ComputeMode, got {type(mode).__name__}")
    return mode is ComputeMode.BF16


def _to_int16(precision: GatePrecision) -> bool:
    if not isinstance(precision, GatePrecision):
        raise TypeError(f"precision: expected a GatePrecision, got {type(precision).__name__}")
    return precision is GatePrecision.INT16


def supported_isas() -> list[str]:
    """Instruction paths that this machine runs, best first."""
    return _native.supported_isas()


def huge_bytes(size: int) -> NDArray[np.uint8]:
    """Allocates zeroed bytes [size], 64-byte aligned; from 1 MiB on, whole pages of 2 MiB, advised to be huge."""
    return _native.alloc(size)


class CpuBackend:
    """One instruction path and a pool of threads. Neither changes a bit of a result (docs/numerics.md).

    threads: threads that compute, the calling one included; None: one per CPU of `cpus`, or of the process.
    isa: 'avx512bf16', 'avx512', 'avx2' or 'portable'; None: the environment's COLIBRI_ISA, else the best that this
        machine runs.
    cpus: pool thread i > 0 is pinned to cpus[i % len(cpus)]; the caller's affinity does not change.

    Raises ValueError for an unknown or unsupported path, a bad count or CPU.
    """

    def __init__(
        self, threads: int | None = 1, isa: str | None = None, cpus: Sequence[int] | None = None
    ) -> None:
        if threads is None:
            threads = len(cpus or os.sched_getaffinity(0))
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
        """Why another path than the requested one is in use; usually empty."""
        return self._native.fallback

    @property
    def threads(self) -> int:
        return self._native.threads

    def close(self) -> None:
        """Ends the pool's threads. A later call raises RuntimeError."""
        self._native.close()

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        return _native.alloc(nbytes)

    def pack_linear(self, weight: Array, mode: ComputeMode) -> PackedLinear:
        return PackedLinear(*self._native.pack_linear(weight, _to_bf16(mode)))

    def pack_expert(self, gate: Array, up: Array, down: Array, mode: ComputeMode) -> PackedExpert:
        return PackedExpert(*self._native.pack_expert(gate, up, down, _to_bf16(mode)))

    def quantize_linear(
        self, weight: Array, dtype: str, group: int, importance: F32 | None = None
    ) -> PackedLinear:
        return PackedLinear(*self._native.quantize_linear(weight, dtype, group, importance))

    def quantize_expert(
        self,
        gate: Array,
        up: Array,
        down: Array,
        dtype: str,
        group: int,
        importance: tuple[F32 | None, F32 | None] | None = None,
    ) -> PackedExpert:
        of_hidden, of_ffn = importance or (None, None)
        return PackedExpert(*self._native.quantize_expert(gate, up, down, dtype, group, of_hidden, of_ffn))

    def dequantize_pairs(
        self, data: Array, n: int, k: int, group: int, live: int, first: int, out: Array
    ) -> None:
        """Writes part of a packed int4 matrix [n, k] as packed bf16, `scale * number` rounded once.

        data: uint8, the packed matrix.
        live: elements of K from here on become +0.
        first: number of the first pair of K to write, counted through all panels.
        out: uint8, a multiple of 128 bytes, receives the pairs.

        Raises ValueError naming the argument.
        """
        self._native.dequantize_pairs(data, n, k, group, live, first, out)

    def linear(self, x: Array, weight: PackedLinear) -> F32:
        return self._native.linear(x, weight)

    def expert_units(self, x: Array, experts: Sequence[PackedExpert], batch: UnitBatch) -> F32:
        return self._native.expert_units(
            x,
            experts,
            batch.group_expert,
            batch.group_count,
            batch.entry_row,
            batch.entry_slot,
            batch.entry_unit,
            batch.entry_weight,
            batch.unit_slots,
        )

    def read_pass(self, data: NDArray[np.uint8]) -> int:
        """Sums the data's 64-bit words modulo 2^64: one plain ascending read by all threads.

        Memory-bound calls are compared with the time it takes.
        """
        return self._native.read_pass(data)

    def peak_pass(self, kind: str, steps: int) -> float:
        """Multiplies and adds from registers alone, on all threads. Returns the operations done, two for each
        multiply-add.

        kind: 'fp32', 'bf16' or 'int8': this path's instruction; returns 0 if it has none.

        Compute-bound calls are compared with the time it takes.
        """
        return self._native.peak_pass(kind, steps)

    def add_inplace(self, x: F32, y: F32) -> None:
        self._native.add_inplace(x, y)

    def embed(self, table: PackedLinear, ids: U32) -> F32:
        return self._native.embed(table, ids)

    def rms_norm(self, x: F32, weight: F32, eps: float, mode: ComputeMode) -> Array:
        return self._native.rms_norm(x, weight, eps, _to_bf16(mode))

    def rope_table(self, theta: float, head_dim: int, positions: int) -> RopeTable:
        return build_rope_table(theta, head_dim, positions)

    def rope_and_store(self, qkv: F32, rope: RopeTable, kv: KvView, heads: int) -> F32:
        return self._native.rope_and_store(
            qkv, rope.cos, rope.sin, kv.k, kv.v, kv.page_table, kv.row_sequence, kv.positions, heads
        )

    def attention(self, q: F32, kv: KvView, window: int | None, mode: ComputeMode) -> Array:
        return self._native.attention(
            q, kv.k, kv.v, kv.page_table, kv.row_sequence, kv.positions, window, _to_bf16(mode)
        )

    def gate(
        self, x: Array, weight: PackedLinear, k: int, precision: GatePrecision = GatePrecision.FP32
    ) -> GateResult:
        return GateResult(*self._native.gate(x, weight, k, _to_int16(precision)))

    def top_k(self, logits: F32, k: int, precision: GatePrecision = GatePrecision.FP32) -> GateResult:
        return GateResult(*self._native.top_k(logits, k, _to_int16(precision)))

    def top_k_pass(self, logits: F32, k: int, times: int) -> None:
        """Runs `top_k` `times` times on one thread, without results, so that Python does not disturb the clock."""
        self._native.top_k_pass(logits, k, times)

    def group(self, keys: U32, buckets: int) -> tuple[U32, U32]:
        return self._native.group(keys, buckets)

    def merge(self, parts: Sequence[F32], part: U32, index: U32, row_offsets: U32) -> F32:
        return self._native.merge(parts, part, index, row_offsets)

    def sample(self, logits: F32, params: SamplingParams, output_index: int) -> int:
        return self._native.sample(
            logits,
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.seed,
            params.choice,
            output_index,
        )

    def log_sum_exp(self, logits: F32) -> NDArray[np.float64]:
        totals = self._native.softmax_totals(logits)
        return np.array([largest + log64(total) for largest, total in totals], dtype=np.float64)
