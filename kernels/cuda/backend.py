"""`CudaBackend`: the API of colibri.kernels.api over the kernels of source/."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import (
    F32,
    U32,
    Array,
    Backend,
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
from colibri.kernels.arithmetic.rope_table import build_rope_table
from colibri.kernels.checks.arrays import check_precision
from colibri.kernels.cuda import attention, experts, products, routing, rows, sampling
from colibri.kernels.cuda.device import Device, DeviceError
from colibri.kernels.cuda.expanding import Dequantiser
from colibri.kernels.cuda.plan import family_of
from colibri.kernels.cuda.weights import WeightCache
from colibri.kernels.layout.aligned import aligned_bytes
from colibri.kernels.reference import ReferenceBackend

#: Threads of a block of the row-wise kernels unless told otherwise.
BLOCK_SIZE = 256
#: Pinned host memory through which weights go to the device.
DMA_BUFFER_SIZE = 64 << 20

#: Behind the family where int4 experts are dequantised by the CPU: they have other bits.
INT4_ON_CPU = "+int4-cpu"


class CudaBackend:
    """The backend on one device.

    Weights are copied to the device at first use and stay within `weight_bytes`; the least recently used leave
    first. If one call's experts need more, they stream through, and copies run while kernels compute.

    block_size: threads per block of the row-wise kernels, a multiple of 32 from 32 to 1024; changes no bit.
    weight_bytes: device memory for weights.
    dma_buffer_size: pinned host memory, bytes, at least 64 KiB.
    packer: packs weights; every packer gives the same bytes. None: the reference backend.
    int4_on: where int4 experts are dequantised: 'gpu', in the kernel; 'cpu', by `packer`, a CpuBackend, on their
        way to the device, where they compute as bf16 experts.

    Raises ValueError naming the argument.
    """

    def __init__(
        self,
        device: Device,
        *,
        weight_bytes: int,
        block_size: int = BLOCK_SIZE,
        dma_buffer_size: int = DMA_BUFFER_SIZE,
        packer: Backend | None = None,
        int4_on: str = "gpu",
    ) -> None:
        if block_size % 32 or not 32 <= block_size <= 1024:
            raise ValueError(f"block_size: expected a multiple of 32 from 32 to 1024, got {block_size!r}")
        self._device: Device | None = device
        self._weights = WeightCache(device, weight_bytes, dma_buffer_size)
        self._block = block_size
        self._lock = threading.Lock()
        self._packer = ReferenceBackend() if packer is None else packer
        if int4_on not in ("gpu", "cpu"):
            raise ValueError(f"int4_on: expected gpu or cpu, got {int4_on!r}")
        self._dequantiser: Dequantiser | None = None
        if int4_on == "cpu":
            if not isinstance(self._packer, Dequantiser):
                raise ValueError(
                    f"packer: expected the cpu backend with int4_on cpu, got {self._packer.name}"
                )
            self._dequantiser = self._packer

    @property
    def name(self) -> str:
        return "cuda"

    @property
    def isa(self) -> str:
        """The instruction family: plan.family_of, with +int4-cpu if int4 experts compute as bf16 experts."""
        family = family_of(self._open().architecture)
        return family if self._dequantiser is None else f"{family}{INT4_ON_CPU}"

    @property
    def threads(self) -> int:
        """Host threads that compute: the caller's only."""
        return 1

    def close(self) -> None:
        """Frees the device's memory. A later call raises RuntimeError."""
        with self._lock:
            if self._device is not None:
                self._weights.clear()
                self._device.close()
            self._device = None

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        return aligned_bytes(nbytes)

    def pack_linear(self, weight: Array, mode: ComputeMode) -> PackedLinear:
        return self._packer.pack_linear(weight, mode)

    def pack_expert(self, gate: Array, up: Array, down: Array, mode: ComputeMode) -> PackedExpert:
        return self._packer.pack_expert(gate, up, down, mode)

    def quantize_linear(
        self, weight: Array, dtype: str, group: int, importance: F32 | None = None
    ) -> PackedLinear:
        return self._packer.quantize_linear(weight, dtype, group, importance)

    def quantize_expert(
        self,
        gate: Array,
        up: Array,
        down: Array,
        dtype: str,
        group: int,
        importance: tuple[F32 | None, F32 | None] | None = None,
    ) -> PackedExpert:
        return self._packer.quantize_expert(gate, up, down, dtype, group, importance)

    def embed(self, table: PackedLinear, ids: U32) -> F32:
        with self._turn() as device:
            return rows.embed(device, self._weights, self._block, table, ids)

    def rms_norm(self, x: F32, weight: F32, eps: float, mode: ComputeMode) -> Array:
        with self._turn() as device:
            return rows.rms_norm(device, self._block, x, weight, eps, mode)

    def linear(self, x: Array, weight: PackedLinear) -> F32:
        with self._turn() as device:
            return products.linear(device, self._weights, x, weight)

    def add_inplace(self, x: F32, y: F32) -> None:
        with self._turn() as device:
            rows.add_inplace(device, self._block, x, y)

    def rope_table(self, theta: float, head_dim: int, positions: int) -> RopeTable:
        return build_rope_table(theta, head_dim, positions)

    def rope_and_store(self, qkv: F32, rope: RopeTable, kv: KvView, heads: int) -> F32:
        with self._turn() as device:
            return attention.rope_and_store(device, self._block, qkv, rope, kv, heads)

    def attention(self, q: F32, kv: KvView, window: int | None, mode: ComputeMode) -> Array:
        with self._turn() as device:
            return attention.attention(device, q, kv, window, mode)

    def gate(
        self, x: Array, weight: PackedLinear, k: int, precision: GatePrecision = GatePrecision.FP32
    ) -> GateResult:
        check_precision(precision)
        if precision is not GatePrecision.FP32:
            raise ValueError(
                f"precision: expected fp32 (the cuda backend has no other), got {precision.value}"
            )
        with self._turn() as device:
            return routing.gate(device, self._weights, x, weight, k)

    def gate_and_group(self, x: Array, weight: PackedLinear, k: int) -> tuple[GateResult, U32, U32]:
        """Runs the gate and sorts its (row, slot) pairs by expert, in one go on the device.

        Returns the gate's result, offsets [experts + 1], and order, indices row * k + slot. Pairs of rows that are
        not ok are left out.
        """
        with self._turn() as device:
            return routing.gate_and_group(device, self._weights, x, weight, k)

    def group(self, keys: U32, buckets: int) -> tuple[U32, U32]:
        with self._turn() as device:
            return routing.group(device, self._block, keys, buckets)

    def expert_units(self, x: Array, experts_: Sequence[PackedExpert], batch: UnitBatch) -> F32:
        with self._turn() as device:
            return experts.expert_units(
                device, self._weights, self._block, x, experts_, batch, self._dequantiser
            )

    def merge(self, parts: Sequence[F32], part: U32, index: U32, row_offsets: U32) -> F32:
        with self._turn() as device:
            return rows.merge(device, self._block, parts, part, index, row_offsets)

    def sample(self, logits: F32, params: SamplingParams, output_index: int) -> int:
        with self._turn() as device:
            return sampling.sample(device, logits, params, output_index)

    def log_sum_exp(self, logits: F32) -> NDArray[np.float64]:
        with self._turn() as device:
            return sampling.log_sum_exp(device, logits)

    def _open(self) -> Device:
        if self._device is None:
            raise DeviceError("backend: expected an open one, got a closed one")
        return self._device

    @contextmanager
    def _turn(self) -> Iterator[Device]:
        """Lets one call run at a time."""
        with self._lock:
            yield self._open()
