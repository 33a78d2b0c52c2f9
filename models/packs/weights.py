"""Convert one matrix or expert of a checkpoint into a pack's format, and measure how much that changes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from colibri.errors import CheckpointError
from colibri.kernels.api import F32, Array, Backend, ComputeMode, PackedExpert, PackedLinear
from colibri.kernels.layout.packing import expert_matrices
from colibri.models.checkpoint import ExpertWeights
from colibri.models.dtypes import BF16, FP16, FP32, fp32_from_stored
from colibri.models.weight_format import WeightFormat

#: Elements compared together: what the comparison takes beside the weights stays small.
_BLOCK = 1 << 20
#: Half a panel: gate and up rows alternate in runs of this many.
_RUN = 16

Importance = tuple[F32 | None, F32 | None]
"""Of an expert's inputs [hidden] and of its hidden values silu(g) * u [ffn]."""


@dataclass(frozen=True, slots=True)
class SquaredError:
    """Sums of squares over weights: of what rounding lost, and of the originals."""

    lost: float = 0.0
    total: float = 0.0

    def __add__(self, other: SquaredError) -> SquaredError:
        return SquaredError(self.lost + other.lost, self.total + other.total)

    @property
    def relative_rms(self) -> float:
        return float((self.lost / self.total) ** 0.5) if self.total else 0.0


def pack_matrix(
    backend: Backend, weight: Array, stored: str, kind: WeightFormat, where: str
) -> tuple[PackedLinear, SquaredError]:
    """Packs a matrix. Raises CheckpointError, naming `where`, for values that fp16 cannot hold.

    weight: [n, k], finite, of dtype `stored`.
    """
    if kind.quantised:
        packed = backend.quantize_linear(np.ascontiguousarray(weight), kind.dtype, kind.group)
    else:
        packed = backend.pack_linear(*_cast(weight, stored, kind, where))
    return packed, _matrix_error(backend, packed, weight, stored, kind)


def pack_expert(
    backend: Backend,
    weights: ExpertWeights,
    stored: str,
    kind: WeightFormat,
    where: str,
    importance: Importance | None,
) -> tuple[PackedExpert, SquaredError]:
    """Packs an expert, as pack_matrix. importance: for int4; None without calibration."""
    parts = (weights.gate, weights.up, weights.down)
    if kind.quantised:
        gate, up, down = (np.ascontiguousarray(part) for part in parts)
        packed = backend.quantize_expert(gate, up, down, kind.dtype, kind.group, importance)
    else:
        (gate, mode), (up, _), (down, _) = (_cast(part, stored, kind, where) for part in parts)
        packed = backend.pack_expert(gate, up, down, mode)
    return packed, _expert_error(backend, packed, weights, stored, kind)


def _cast(weight: Array, stored: str, kind: WeightFormat, where: str) -> tuple[Array, ComputeMode]:
    """Returns the weight and the mode in which packing yields the format. Kernels round to bf16, as in compute mode
    bf16.
    """
    if kind.dtype == stored:
        return np.ascontiguousarray(weight), ComputeMode.FP32
    if kind.dtype == BF16.name:
        return np.ascontiguousarray(weight), ComputeMode.BF16
    wide = fp32_from_stored(weight, stored)
    if kind.dtype == FP32.name:
        return wide, ComputeMode.FP32
    with np.errstate(over="ignore"):
        half = wide.astype(FP16.numpy)
    if not np.isfinite(half).all():
        largest = float(np.abs(wide).max())
        raise CheckpointError.of(where, "largest weight", "at most 65504, for fp16", f"{largest:g}")
    return half, ComputeMode.FP32


def _matrix_error(
    backend: Backend, packed: PackedLinear, weight: Array, stored: str, kind: WeightFormat
) -> SquaredError:
    error = SquaredError()
    if kind.dtype == stored:
        return SquaredError(0.0, _squares(weight, stored))
    for begin, got in _rows(backend, packed):
        error += _difference(got, fp32_from_stored(weight[begin : begin + len(got)], stored))
    return error


def _expert_error(
    backend: Backend, packed: PackedExpert, weights: ExpertWeights, stored: str, kind: WeightFormat
) -> SquaredError:
    hidden, ffn = packed.hidden, packed.ffn
    if kind.dtype == stored:
        parts = (weights.gate, weights.up, weights.down)
        return SquaredError(0.0, sum(_squares(part, stored) for part in parts))
    both, down = expert_matrices(packed)
    error = SquaredError()
    for begin, got in _rows(backend, both):
        # Whole panels: 16 gate rows, then the 16 up rows of the same index.
        runs = got.reshape(-1, 2, _RUN, hidden)
        for half, part in enumerate((weights.gate, weights.up)):
            rows = runs[:, half].reshape(-1, hidden)
            source = part[begin // 2 : begin // 2 + len(rows)]
            error += _difference(rows[: len(source)], fp32_from_stored(source, stored))
    for begin, got in _rows(backend, down):
        source = weights.down[begin : begin + len(got)]
        error += _difference(got[:, :ffn], fp32_from_stored(source, stored))
    return error


def _rows(backend: Backend, packed: PackedLinear) -> Iterator[tuple[int, F32]]:
    """Yields (first row, rows as they will be used) in blocks of whole panels."""
    step = max(_BLOCK // packed.k // 32, 1) * 32
    for begin in range(0, packed.n, step):
        ids = np.arange(begin, min(begin + step, packed.n), dtype=np.uint32)
        yield begin, backend.embed(packed, ids)


def _difference(got: F32, source: F32) -> SquaredError:
    lost = np.subtract(got, source)
    return SquaredError(float(np.vdot(lost, lost)), float(np.vdot(source, source)))


def _squares(weight: Array, stored: str) -> float:
    flat = weight.reshape(-1)
    total = 0.0
    for begin in range(0, flat.size, _BLOCK):
        wide = fp32_from_stored(flat[begin : begin + _BLOCK], stored)
        total += float(np.vdot(wide, wide))
    return total
