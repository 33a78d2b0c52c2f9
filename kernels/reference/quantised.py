"""Matrices and experts of int8 and int4 weights: packing them, their products on quantised rows, dequantising them."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, PANEL, Array, PackedExpert, PackedLinear
from colibri.kernels.arithmetic.floats import F64, to_f32, widen
from colibri.kernels.checks.arrays import check_array
from colibri.kernels.layout import quant_packing
from colibri.kernels.layout.aligned import aligned_bytes
from colibri.kernels.layout.packing import (
    gate_up_bytes,
    interleave_gate_up,
    packed_expert_bytes,
    packed_linear_bytes,
    separate_gate_up,
)
from colibri.kernels.layout.quant_packing import Quantised, check_quantised_format
from colibri.kernels.reference.quantising import quantise

_STORED = (np.uint16, np.float16, np.float32)
_QUANTISED = ("int8", "int4")


def is_quantised(weight: PackedLinear | PackedExpert) -> bool:
    return weight.dtype in _QUANTISED


def quantize_linear(weight: Array, dtype: str, group: int, importance: F32 | None = None) -> PackedLinear:
    check_quantised_format(dtype, group)
    _check_weight("weight", weight, ("n", "k"))
    n, k = weight.shape
    _check_importance("importance", importance, dtype, k)
    data = aligned_bytes(packed_linear_bytes(dtype, n, k, group))
    data[:] = quant_packing.pack(quantise(weight, dtype, group, importance), dtype, group)
    return PackedLinear(dtype, n, k, data, group)


def quantize_expert(
    gate: Array,
    up: Array,
    down: Array,
    dtype: str,
    group: int,
    importance: tuple[F32 | None, F32 | None] | None = None,
) -> PackedExpert:
    check_quantised_format(dtype, group)
    check_array("gate", gate, _STORED, ("ffn", "hidden"))
    ffn, hidden = gate.shape
    check_array("up", up, gate.dtype, (ffn, hidden))
    check_array("down", down, gate.dtype, (hidden, ffn))
    for name, matrix in (("gate", gate), ("up", up), ("down", down)):
        _check_weight(name, matrix, matrix.shape)
    of_hidden, of_ffn = importance or (None, None)
    _check_importance("importance[0]", of_hidden, dtype, hidden)
    _check_importance("importance[1]", of_ffn, dtype, ffn)
    first = quantise(interleave_gate_up(gate, up), dtype, group, of_hidden)
    narrow = quantise(down, dtype, group, of_ffn)
    padded = np.zeros((hidden, -(-ffn // 16) * 16), dtype=np.int8)
    padded[:, :ffn] = narrow.numbers
    data = aligned_bytes(packed_expert_bytes(dtype, hidden, ffn, group))
    size, offset = gate_up_bytes(dtype, hidden, ffn, group)
    data[:size] = quant_packing.pack(first, dtype, group)
    data[offset:] = quant_packing.pack(Quantised(padded, narrow.scales), dtype, group)
    return PackedExpert(dtype, hidden, ffn, data, group)


def unpack_linear(weight: PackedLinear, name: str = "weight") -> Quantised:
    return quant_packing.unpack(weight.data, weight.dtype, weight.n, weight.k, weight.group, f"{name}.data")


def unpack_expert(expert: PackedExpert) -> tuple[Quantised, Quantised, Quantised]:
    """gate, up [ffn, hidden] and down [hidden, ffn]."""
    hidden, ffn, dtype, group = expert.hidden, expert.ffn, expert.dtype, expert.group
    check_array("expert.data", expert.data, np.uint8, (packed_expert_bytes(dtype, hidden, ffn, group),))
    size, offset = gate_up_bytes(dtype, hidden, ffn, group)
    padded = -(-ffn // (PANEL // 2)) * (PANEL // 2)
    both = quant_packing.unpack(expert.data[:size], dtype, 2 * padded, hidden, group, "expert.data")
    down = quant_packing.unpack(expert.data[offset:], dtype, hidden, padded, group, "expert.data")
    numbers, scales = separate_gate_up(both.numbers, ffn), separate_gate_up(both.scales, ffn)
    gate, up = (Quantised(n, s) for n, s in zip(numbers, scales, strict=True))
    return gate, up, Quantised(np.ascontiguousarray(down.numbers[:, :ffn]), down.scales)


def dequantize_linear(weight: PackedLinear) -> F32:
    """scale * number, rounded once: fp32 [n, k]."""
    return _values(unpack_linear(weight), weight.group)


def dequantize_expert(expert: PackedExpert) -> tuple[F32, F32, F32]:
    """gate, up fp32 [ffn, hidden] and down [hidden, ffn]."""
    gate, up, down = (_values(matrix, expert.group) for matrix in unpack_expert(expert))
    return gate, up, down


def quantise_rows(x: Array, group: int) -> tuple[Array, F32]:
    """Numbers int8 [rows, k] and scales fp32 [rows, groups] of fp32 or bf16 rows, bit for bit as the cpu backend."""
    rows = widen(x).astype(np.float32)
    numbers = np.zeros(rows.shape, dtype=np.int8)
    scales = np.zeros((len(rows), -(-rows.shape[1] // group)), dtype=np.float32)
    for g, start in enumerate(range(0, rows.shape[1], group)):
        part = rows[:, start : start + group]
        broken = np.asarray(~np.isfinite(part).all(axis=1))
        largest = np.where(broken, np.float32(0), np.abs(part).max(axis=1))
        scale = to_f32(largest / np.float32(127))
        with np.errstate(divide="ignore", over="ignore"):
            inverse = np.where(scale > 0, np.float32(127) / largest, np.float32(0))
        with np.errstate(invalid="ignore"):
            scaled = np.where(broken[:, None], np.float32(0), to_f32(part * inverse[:, None]))
        numbers[:, start : start + group] = np.rint(scaled)
        scales[:, g] = np.where(broken, np.float32(np.nan), scale)
    return numbers, scales


def product(x: Array, weight: Quantised, group: int) -> F64:
    """Rows of fp32 or bf16 times a matrix [n, k]: exact sums within a group, float64 over the groups."""
    numbers, scales = quantise_rows(x, group)
    y = np.zeros((len(x), len(weight.numbers)))
    of_weights = widen(weight.scales)
    for g, start in enumerate(range(0, x.shape[1], group)):
        part = slice(start, start + group)
        columns = weight.numbers[:, part].astype(np.float64)
        for row in range(len(x)):
            sums = columns @ numbers[row, part].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                y[row] += sums * widen(to_f32(scales[row, g] * to_f32(of_weights[:, g])))
    return y


def _values(matrix: Quantised, group: int) -> F32:
    k = matrix.numbers.shape[1]
    scales = np.repeat(widen(matrix.scales).astype(np.float32), group, axis=1)[:, :k]
    return to_f32(matrix.numbers.astype(np.float32) * scales)


def _check_weight(name: str, weight: Array, shape: tuple[int | str, ...]) -> None:
    check_array(name, weight, _STORED, shape)
    if 0 in weight.shape:
        raise ValueError(f"{name}: expected extents of at least 1, got {list(weight.shape)}")
    bad = np.argwhere(~np.isfinite(widen(weight)))
    if len(bad):
        raise ValueError(f"{name}: expected finite weights, got NaN or Inf at {bad[0].tolist()}")


def _check_importance(name: str, importance: F32 | None, dtype: str, k: int) -> None:
    if importance is None:
        return
    if dtype != "int4":
        raise ValueError(f"{name}: expected None with {dtype}, got importances")
    check_array(name, importance, np.float32, (k,))
    bad = np.flatnonzero(~(np.isfinite(importance) & (importance >= 0)))
    if bad.size:
        at = int(bad[0])
        raise ValueError(f"{name}[{at}]: expected a finite number, at least 0, got {importance[at]}")
