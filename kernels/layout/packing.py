"""The packed layout, version 1 (docs/numerics.md), in NumPy: the same bytes as the cpu backend's."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import PANEL, Array, ComputeMode, PackedExpert, PackedLinear
from colibri.kernels.arithmetic.floats import dtype_name, numpy_dtype, to_bf16
from colibri.kernels.checks.arrays import check_array, check_mode
from colibri.kernels.layout.aligned import ALIGNMENT, aligned_bytes
from colibri.kernels.layout.quant_packing import quant_linear_bytes

_STORED = (np.uint16, np.float16, np.float32)


def pack_linear(weight: Array, mode: ComputeMode) -> PackedLinear:
    check_mode(mode)
    check_array("weight", weight, _STORED, ("n", "k"))
    stored = _stored(weight, mode)
    panels = _panels(stored)
    data = aligned_bytes(panels.nbytes)
    data[:] = panels.view(np.uint8).ravel()
    return PackedLinear(dtype_name(stored), weight.shape[0], weight.shape[1], data)


def unpack_linear(weight: PackedLinear) -> Array:
    """[n, k] in the stored dtype. Raises ValueError when `data` does not have the layout's size."""
    rows = _from_panels(weight.data, weight.dtype, weight.n, weight.k, "weight.data")
    return np.ascontiguousarray(rows[: weight.n, : weight.k])


def pack_expert(gate: Array, up: Array, down: Array, mode: ComputeMode) -> PackedExpert:
    check_mode(mode)
    check_array("gate", gate, _STORED, ("ffn", "hidden"))
    check_array("up", up, gate.dtype, gate.shape)
    ffn, hidden = gate.shape
    check_array("down", down, gate.dtype, (hidden, ffn))
    gate_up = interleave_gate_up(_stored(gate, mode), _stored(up, mode))
    wide_down = np.zeros((hidden, len(gate_up) // 2), dtype=gate_up.dtype)
    wide_down[:, :ffn] = _stored(down, mode)
    first, second = _panels(gate_up), _panels(wide_down)
    offset = _round_up(first.nbytes, ALIGNMENT)
    data = aligned_bytes(offset + second.nbytes)
    data[: first.nbytes] = first.view(np.uint8).ravel()
    data[offset:] = second.view(np.uint8).ravel()
    return PackedExpert(dtype_name(gate_up), hidden, ffn, data)


def unpack_expert(expert: PackedExpert) -> tuple[Array, Array, Array]:
    """gate, up [ffn, hidden] and down [hidden, ffn] in the stored dtype."""
    padded = _round_up(expert.ffn, PANEL // 2)
    first, offset = gate_up_bytes(expert.dtype, expert.hidden, expert.ffn)
    gate_up = _from_panels(expert.data[:first], expert.dtype, 2 * padded, expert.hidden, "expert.data")
    down = _from_panels(expert.data[offset:], expert.dtype, expert.hidden, padded, "expert.data")
    gate, up = separate_gate_up(gate_up[:, : expert.hidden], expert.ffn)
    return gate, up, down[: expert.hidden, : expert.ffn]


def expert_matrices(expert: PackedExpert) -> tuple[PackedLinear, PackedLinear]:
    """Of any dtype, without a copy: gate_up [2 * padded ffn, hidden], 16 gate rows and 16 up rows in turn, and down
    [hidden, padded ffn]."""
    padded = _round_up(expert.ffn, PANEL // 2)
    first, offset = gate_up_bytes(expert.dtype, expert.hidden, expert.ffn, expert.group)
    return (
        PackedLinear(expert.dtype, 2 * padded, expert.hidden, expert.data[:first], expert.group),
        PackedLinear(expert.dtype, expert.hidden, padded, expert.data[offset:], expert.group),
    )


def packed_linear_bytes(dtype: str, n: int, k: int, group: int = 0) -> int:
    """Size of a packed matrix [n, k]. dtype: 'bf16', 'fp16' or 'fp32', as stored after packing, with group 0; 'int8' or
    'int4' with group 32, 64 or 128."""
    if dtype in ("int8", "int4"):
        return quant_linear_bytes(dtype, n, k, group)
    if group:
        raise ValueError(f"group: expected 0 with {dtype}, got {group!r}")
    return _packed_bytes(dtype, n, k)


def packed_expert_bytes(dtype: str, hidden: int, ffn: int, group: int = 0) -> int:
    """Size of a packed expert's block; dtype and group as in packed_linear_bytes."""
    _, offset = gate_up_bytes(dtype, hidden, ffn, group)
    return offset + packed_linear_bytes(dtype, hidden, _round_up(ffn, PANEL // 2), group)


def gate_up_bytes(dtype: str, hidden: int, ffn: int, group: int = 0) -> tuple[int, int]:
    """Bytes of an expert's gate_up, and where down begins behind it."""
    size = packed_linear_bytes(dtype, 2 * _round_up(ffn, PANEL // 2), hidden, group)
    return size, _round_up(size, ALIGNMENT)


def interleave_gate_up(gate: Array, up: Array) -> Array:
    """gate, up [ffn, hidden] -> [2 * padded ffn, hidden]: 16 gate rows, the 16 up rows of the same index, ..."""
    ffn, hidden = gate.shape
    padded = _round_up(ffn, PANEL // 2)
    out = np.zeros((padded // 16, 2, 16, hidden), dtype=gate.dtype)
    for half, matrix in enumerate((gate, up)):
        rows = np.zeros((padded, hidden), dtype=gate.dtype)
        rows[:ffn] = matrix
        out[:, half] = rows.reshape(padded // 16, 16, hidden)
    return out.reshape(2 * padded, hidden)


def separate_gate_up(gate_up: Array, ffn: int) -> tuple[Array, Array]:
    """What interleave_gate_up was given."""
    halves = gate_up.reshape(len(gate_up) // 32, 2, 16, gate_up.shape[1])
    gate, up = (halves[:, i].reshape(-1, gate_up.shape[1])[:ffn] for i in (0, 1))
    return gate, up


def _stored(weight: Array, mode: ComputeMode) -> Array:
    """In bf16 mode rounded to bf16, in fp32 mode as it is."""
    if mode is ComputeMode.FP32 or weight.dtype == np.uint16:
        return weight
    return to_bf16(weight.astype(np.float32))


def _panels(weight: Array) -> Array:
    """[n, k] -> [n/32][k/2][32][2], fp32 [n/32][k][32]; n rounded up to 32, k to 2, with zeros."""
    n, k = weight.shape
    padded = np.zeros((_round_up(n, PANEL), _round_up(k, 2)), dtype=weight.dtype)
    padded[:n, :k] = weight
    panels = padded.reshape(-1, PANEL, padded.shape[1])
    if weight.dtype == np.float32:
        return np.ascontiguousarray(panels.transpose(0, 2, 1))
    return np.ascontiguousarray(panels.reshape(len(panels), PANEL, -1, 2).transpose(0, 2, 1, 3))


def _from_panels(data: Array, dtype: str, n: int, k: int, name: str) -> Array:
    """The padded matrix [n rounded up to 32, k rounded up to 2]."""
    expected = _packed_bytes(dtype, n, k)
    check_array(name, data, np.uint8, (expected,))
    rows, columns = _round_up(n, PANEL), _round_up(k, 2)
    values = data.view(numpy_dtype(dtype))
    if dtype == "fp32":
        return values.reshape(-1, columns, PANEL).transpose(0, 2, 1).reshape(rows, columns)
    return values.reshape(-1, columns // 2, PANEL, 2).transpose(0, 2, 1, 3).reshape(rows, columns)


def _packed_bytes(dtype: str, n: int, k: int) -> int:
    return _round_up(n, PANEL) * _round_up(k, 2) * numpy_dtype(dtype).itemsize


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to
