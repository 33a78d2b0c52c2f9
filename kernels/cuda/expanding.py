"""Turn int4 experts into bf16 on their way to the device: the CPU dequantises them into pinned memory, piece
by piece.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import Array, PackedExpert
from colibri.kernels.layout.packing import gate_up_bytes, packed_expert_bytes

Bytes = NDArray[np.uint8]


@runtime_checkable
class Dequantiser(Protocol):
    """Writes part of a packed int4 matrix as packed bf16: CpuBackend.dequantize_pairs."""

    def dequantize_pairs(
        self, data: Array, n: int, k: int, group: int, live: int, first: int, out: Array
    ) -> None: ...


class Expansion:
    """What arrays become on the device: packed bf16 experts in place of packed int4 experts of one shape."""

    def __init__(self, dequantiser: Dequantiser, expert: PackedExpert) -> None:
        self._dequantiser = dequantiser
        self._hidden, self._ffn, self._group = expert.hidden, expert.ffn, expert.group
        self._padded = -(-expert.ffn // 16) * 16
        self._narrow = gate_up_bytes("int4", expert.hidden, expert.ffn, expert.group)
        self._down = gate_up_bytes("bf16", expert.hidden, expert.ffn)[1]
        self.nbytes = packed_expert_bytes("bf16", expert.hidden, expert.ffn)

    def write(self, source: Bytes, start: int, out: Bytes) -> None:
        """Writes bytes start .. start + len(out) of the bf16 expert; both are multiples of 128."""
        size, offset = self._narrow
        split = min(max(self._down - start, 0), len(out))
        hidden, padded, group = self._hidden, self._padded, self._group
        if split:
            self._dequantiser.dequantize_pairs(
                source[:size], 2 * padded, hidden, group, hidden, start // 128, out[:split]
            )
        if split < len(out):
            first = (start + split - self._down) // 128
            self._dequantiser.dequantize_pairs(
                source[offset:], hidden, padded, group, self._ffn, first, out[split:]
            )
