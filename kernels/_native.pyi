"""CPU kernels. Used through colibri.kernels.cpu only."""

from collections.abc import Sequence

import numpy
import numpy.typing


def alloc(bytes: int) -> numpy.typing.NDArray[numpy.uint8]:
    """
    Zeroed bytes, 64-byte aligned; from 1 MiB on, whole 2 MiB pages advised to be huge.
    """

def supported_isas() -> list[str]:
    """Instruction paths that this machine runs, best first."""

def first_not_finite_scale(data: object, dtype: str, n: int, k: int, group: int) -> int:
    """
    Of a packed matrix: (panel * groups + group) * 32 + column of the first scale in the order of the data that is NaN or Inf, or -1.
    """

class Backend:
    def __init__(self, threads: int = 1, isa: str | None = None, cpus: Sequence[int] | None = None, distrust_special_instructions: bool = False) -> None: ...

    @property
    def isa(self) -> str: ...

    @property
    def fallback(self) -> str: ...

    @property
    def threads(self) -> int: ...

    def close(self) -> None: ...

    def attention(self, q: object, k: object, v: object, page_table: object, row_sequence: object, positions: object, window: int | None, to_bf16: bool) -> numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint16]: ...

    def add_inplace(self, x: object, y: object) -> None: ...

    def embed(self, table: object, ids: object) -> numpy.typing.NDArray[numpy.float32]: ...

    def expert_units(self, x: object, experts: Sequence[object], group_expert: object, group_count: object, entry_row: object, entry_slot: object, entry_unit: object, entry_weight: object, unit_slots: object) -> numpy.typing.NDArray[numpy.float32]: ...

    def gate(self, x: object, weight: object, k: int, int16: bool) -> tuple[numpy.typing.NDArray[numpy.uint16], numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.bool_], int]:
        """(experts, weights, ok, rows that fp32 would have routed otherwise)"""

    def top_k(self, logits: object, k: int, int16: bool) -> tuple[numpy.typing.NDArray[numpy.uint16], numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.bool_], int]:
        """(experts, weights, ok, rows that fp32 would have routed otherwise)"""

    def top_k_pass(self, logits: object, k: int, times: int) -> None:
        """top_k so many times over, on one thread, without results."""

    def group(self, keys: object, buckets: int) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.uint32]]:
        """(offsets, order)"""

    def read_pass(self, data: object) -> int:
        """
        Sum of the data's 64-bit words modulo 2^64, read once in ascending order by all threads.
        """

    def peak_pass(self, kind: str, steps: int) -> float:
        """
        Multiply-adds from registers, by all threads: the operations done (two each), 0 where the path has no such instruction. kind: 'fp32', 'bf16' or 'int8'.
        """

    def linear(self, x: object, weight: object) -> numpy.typing.NDArray[numpy.float32]: ...

    def pack_linear(self, weight: object, to_bf16: bool) -> tuple[str, int, int, numpy.typing.NDArray[numpy.uint8]]:
        """(dtype, n, k, data)"""

    def pack_expert(self, gate: object, up: object, down: object, to_bf16: bool) -> tuple[str, int, int, numpy.typing.NDArray[numpy.uint8]]:
        """(dtype, hidden, ffn, data)"""

    def merge(self, parts: Sequence[object], part: object, index: object, row_offsets: object) -> numpy.typing.NDArray[numpy.float32]: ...

    def rms_norm(self, x: object, weight: object, eps: float, to_bf16: bool) -> numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint16]: ...

    def quantize_linear(self, weight: object, dtype: str, group: int, importance: object | None) -> tuple[str, int, int, numpy.typing.NDArray[numpy.uint8], int]:
        """(dtype, n, k, data, group)"""

    def quantize_expert(self, gate: object, up: object, down: object, dtype: str, group: int, hidden_importance: object | None, ffn_importance: object | None) -> tuple[str, int, int, numpy.typing.NDArray[numpy.uint8], int]:
        """(dtype, hidden, ffn, data, group)"""

    def dequantize_pairs(self, data: object, n: int, k: int, group: int, live: int, first: int, out: object) -> None: ...

    def rope_and_store(self, qkv: object, cos: object, sin: object, k: object, v: object, page_table: object, row_sequence: object, positions: object, heads: int) -> numpy.typing.NDArray[numpy.float32]: ...

    def sample(self, logits: object, temperature: float, top_k: object, top_p: float, min_p: float, seed: object, choice: object, output_index: object) -> int: ...

    def softmax_totals(self, logits: object) -> list[tuple[float, float]]: ...
