"""ReferenceBackend: the API of colibri.kernels.api over the functions of this package."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
from colibri.kernels.arithmetic.floats import F64
from colibri.kernels.arithmetic.rope_table import build_rope_table
from colibri.kernels.checks.arrays import check_precision
from colibri.kernels.layout import packing
from colibri.kernels.layout.aligned import aligned_bytes
from colibri.kernels.reference import attention, gate, group, linear, merge, norm, quantised, sampling
from colibri.kernels.reference import experts as ffn
from colibri.kernels.reference import rope as rotary


class ReferenceBackend:
    """Stateless; one thread. See colibri.kernels.api.Backend for shapes and dtypes."""

    name = "reference"
    isa = "numpy"
    threads = 1

    def close(self) -> None:
        return None

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        return aligned_bytes(nbytes)

    def pack_linear(self, weight: Array, mode: ComputeMode) -> PackedLinear:
        return packing.pack_linear(weight, mode)

    def pack_expert(self, gate: Array, up: Array, down: Array, mode: ComputeMode) -> PackedExpert:
        return packing.pack_expert(gate, up, down, mode)

    def quantize_linear(
        self, weight: Array, dtype: str, group: int, importance: F32 | None = None
    ) -> PackedLinear:
        return quantised.quantize_linear(weight, dtype, group, importance)

    def quantize_expert(
        self,
        gate: Array,
        up: Array,
        down: Array,
        dtype: str,
        group: int,
        importance: tuple[F32 | None, F32 | None] | None = None,
    ) -> PackedExpert:
        return quantised.quantize_expert(gate, up, down, dtype, group, importance)

    def embed(self, table: PackedLinear, ids: U32) -> F32:
        return linear.embed(table, ids)

    def rms_norm(self, x: F32, weight: F32, eps: float, mode: ComputeMode) -> Array:
        return norm.rms_norm(x, weight, eps, mode)

    def linear(self, x: Array, weight: PackedLinear) -> F32:
        return linear.linear(x, weight)

    def add_inplace(self, x: F32, y: F32) -> None:
        norm.add_inplace(x, y)

    def rope_table(self, theta: float, head_dim: int, positions: int) -> RopeTable:
        return build_rope_table(theta, head_dim, positions)

    def rope_and_store(self, qkv: F32, rope: RopeTable, kv: KvView, heads: int) -> F32:
        return rotary.rope_and_store(qkv, rope, kv, heads)

    def attention(self, q: F32, kv: KvView, window: int | None, mode: ComputeMode) -> Array:
        return attention.attention(q, kv, window, mode)

    def gate(
        self, x: Array, weight: PackedLinear, k: int, precision: GatePrecision = GatePrecision.FP32
    ) -> GateResult:
        check_precision(precision)
        return gate.gate(x, weight, k, precision)

    def top_k(self, logits: F32, k: int, precision: GatePrecision = GatePrecision.FP32) -> GateResult:
        check_precision(precision)
        return gate.top_k(logits, k, precision)

    def group(self, keys: U32, buckets: int) -> tuple[U32, U32]:
        return group.group(keys, buckets)

    def expert_units(self, x: Array, experts: Sequence[PackedExpert], batch: UnitBatch) -> F32:
        return ffn.expert_units(x, experts, batch)

    def merge(self, parts: Sequence[F32], part: U32, index: U32, row_offsets: U32) -> F32:
        return merge.merge(parts, part, index, row_offsets)

    def sample(self, logits: F32, params: SamplingParams, output_index: int) -> int:
        return sampling.sample(logits, params, output_index)

    def log_sum_exp(self, logits: F32) -> F64:
        return sampling.log_sum_exp(logits)
