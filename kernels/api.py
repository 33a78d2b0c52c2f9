"""The one small API that every backend of the mathematics implements.

Belongs here and below: pure functions of arrays (gate, group, expert FFN, merge, attention, norms, head, sampling,
packing). Does not belong here: models, placement, transports, files. This folder imports NumPy and nothing of
Colibri but itself, and has no `__init__.py` (see pyproject.toml).

Arrays are C-contiguous. bf16 is held as `uint16` bit patterns, fp16 as `float16`, fp32 as `float32`.
docs/numerics.md specifies what each function computes, to the bit. Every function checks shapes, dtypes and index
ranges, and raises ValueError or TypeError that names the argument, what was expected and what it got.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]

#: Version of the packed layout (docs/numerics.md); packs of another version are refused.
LAYOUT_VERSION = 1
#: Output columns of a panel.
PANEL = 32
#: Elements of K that may share a scale (int8, int4).
GROUPS = (32, 64, 128)
#: Keys of an attention tile.
TILE = 64
#: Largest number of experts per row.
MAX_TOP_K = 16


class ComputeMode(enum.Enum):
    """Where results are rounded; the same for every batch size (docs/numerics.md)."""

    FP32 = "fp32"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A matrix [n, k] in the packed layout.

    dtype: 'bf16', 'fp16', 'fp32', 'int8' or 'int4'.
    data: uint8, 64-byte aligned.
    group: elements of K that share a scale (32, 64 or 128); 0 for weights without scales.
    """

    dtype: str
    n: int
    k: int
    data: NDArray[np.uint8]
    group: int = 0


@dataclass(frozen=True, slots=True)
class PackedExpert:
    """One expert as one block in the packed layout: gate_up, then down. Fields as in PackedLinear."""

    dtype: str
    hidden: int
    ffn: int
    data: NDArray[np.uint8]
    group: int = 0


class GatePrecision(enum.Enum):
    """What a row's experts are chosen by: its fp32 logits, or 16-bit integers scaled to the row's largest magnitude.

    The weights are the softmax of the chosen experts' fp32 logits either way (docs/numerics.md).
    """

    FP32 = "fp32"
    INT16 = "int16"


@dataclass(frozen=True, slots=True)
class GateResult:
    """The gate's choice for each row.

    experts: uint16 [rows, k]; slot 0 has the largest logit.
    weights: fp32 [rows, k].
    ok: bool [rows]. A row that is not ok held NaN or Inf; its experts and weights are zero and must not be
        dispatched.
    differing: number of rows whose fp32 logits would have chosen otherwise, in any slot (0 in fp32 precision).
    """

    experts: NDArray[np.uint16]
    weights: F32
    ok: NDArray[np.bool_]
    differing: int = 0


@dataclass(frozen=True, slots=True)
class UnitBatch:
    """The work of one worker in one layer: N entries in G groups, giving U units. All arrays are uint32 but the
    weights.

    group_expert: [G], expert ids, ascending.
    group_count: [G], entries of each group, above 0.
    entry_row: [N], row of x.
    entry_slot: [N], gate slot.
    entry_unit: [N], unit that the entry belongs to.
    entry_weight: fp32 [N].
    unit_slots: [U], 1, or n for a folded prefix 0..n-1 of one row's slots.
    """

    group_expert: U32
    group_count: U32
    entry_row: U32
    entry_slot: U32
    entry_unit: U32
    entry_weight: F32
    unit_slots: U32


@dataclass(frozen=True, slots=True)
class KvView:
    """Paged cache of one layer plus the page tables of the sequences in the batch.

    k, v: [pages, kv_heads, page, head_dim] in the cache dtype (fp32 or bf16), page a power of two from 8 to 64;
    page_table int32 [sequences, max_pages]; row_sequence int32 [rows]; positions int32 [rows].
    """

    k: Array
    v: Array
    page_table: NDArray[np.int32]
    row_sequence: NDArray[np.int32]
    positions: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Cosines and sines by position: cos, sin fp32 [positions, head_dim / 2]."""

    cos: F32
    sin: F32


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose a token from logits.

    temperature: 0: the likeliest token.
    top_k, min_p: 0: off.
    top_p: 1: off.
    seed: 64 bits.
    choice: number of the choice in its request.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    choice: int = 0
    min_p: float = 0.0


class Backend(Protocol):
    """One compute backend: an instruction path and a pool of threads. Calls from several threads run one after
    another.
    """

    @property
    def name(self) -> str:
        """'cpu' or 'reference'."""
        ...

    @property
    def isa(self) -> str:
        """Instruction path in use, for example 'avx512bf16'."""
        ...

    @property
    def threads(self) -> int: ...

    def close(self) -> None:
        """Ends the pool's threads. No call may follow."""
        ...

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocates zeroed memory for packed weights that come from elsewhere: uint8 [nbytes], 64-byte aligned, on
        huge pages if the backend has them.
        """
        ...

    def pack_linear(self, weight: Array, mode: ComputeMode) -> PackedLinear:
        """Packs a matrix. In bf16 mode other dtypes are rounded to bf16.

        weight: [n, k] bf16, fp16 or fp32.
        """
        ...

    def pack_expert(self, gate: Array, up: Array, down: Array, mode: ComputeMode) -> PackedExpert:
        """Packs an expert.

        gate, up: [ffn, hidden], down: [hidden, ffn]; one dtype for all three.
        """
        ...

    def quantize_linear(
        self, weight: Array, dtype: str, group: int, importance: F32 | None = None
    ) -> PackedLinear:
        """Quantises a matrix to integers, with a bf16 scale per row and `group` elements of K.

        weight: [n, k] bf16, fp16 or fp32.
        dtype: 'int8' or 'int4'.
        group: 32, 64 or 128; a row's last group may be shorter.
        importance: fp32 [k], for int4 only: how much an error in each input counts, such as that input's mean
            square over a calibration text. None: errors of large weights count more (docs/numerics.md).

        int4 searches its scales; the weighted squared error is never above that of plain rounding. Every backend
        gives the same bytes. Raises ValueError for NaN or Inf among the weights.
        """
        ...

    def quantize_expert(
        self,
        gate: Array,
        up: Array,
        down: Array,
        dtype: str,
        group: int,
        importance: tuple[F32 | None, F32 | None] | None = None,
    ) -> PackedExpert:
        """Quantises an expert as quantize_linear does a matrix.

        gate, up: [ffn, hidden], down: [hidden, ffn]; one dtype for all three.
        importance: of the expert's inputs [hidden], and of its hidden values silu(g) * u [ffn].
        """
        ...

    def embed(self, table: PackedLinear, ids: U32) -> F32:
        """Returns the rows `ids` of a packed matrix [vocab, hidden], widened: fp32 [rows, hidden]."""
        ...

    def rms_norm(self, x: F32, weight: F32, eps: float, mode: ComputeMode) -> Array:
        """Normalises rows: x fp32 [rows, hidden] -> [rows, hidden] in the mode's row dtype."""
        ...

    def linear(self, x: Array, weight: PackedLinear) -> F32:
        """Multiplies rows by a matrix: x [rows, k] -> fp32 [rows, n].

        x: fp32; or bf16 with bf16, int8 or int4 weights.
        """
        ...

    def add_inplace(self, x: F32, y: F32) -> None:
        """Adds y to x in place; both fp32 [rows, hidden]."""
        ...

    def rope_table(self, theta: float, head_dim: int, positions: int) -> RopeTable: ...

    def rope_and_store(self, qkv: F32, rope: RopeTable, kv: KvView, heads: int) -> F32:
        """Rotates q and k, and writes K and V into the cache.

        qkv: fp32 [rows, (heads + 2 kv_heads) * head_dim].

        Returns the rotated q, fp32 [rows, heads * head_dim].
        """
        ...

    def attention(self, q: F32, kv: KvView, window: int | None, mode: ComputeMode) -> Array:
        """q fp32 [rows, heads * head_dim] -> [rows, heads * head_dim] in the mode's row dtype."""
        ...

    def gate(
        self, x: Array, weight: PackedLinear, k: int, precision: GatePrecision = GatePrecision.FP32
    ) -> GateResult:
        """Chooses k experts for each row.

        x: [rows, hidden] in the mode's row dtype.
        weight: [experts, hidden], at most 65,536 experts.
        k: 1 to 16.

        Raises ValueError for a precision that the backend does not have (cuda: int16).
        """
        ...

    def group(self, keys: U32, buckets: int) -> tuple[U32, U32]:
        """Sorts keys by counting, stable and in linear time.

        keys: each below `buckets`.

        Returns offsets [buckets + 1] of each bucket, and order [len(keys)], indices into keys. No rows are copied.
        """
        ...

    def expert_units(self, x: Array, experts: Sequence[PackedExpert], batch: UnitBatch) -> F32:
        """Computes the expert FFN over a worker's whole batch.

        x: [R, hidden] in the mode's row dtype.
        experts: one for each group of `batch`.

        Returns fp32 [U, hidden], each unit weighted and folded.
        """
        ...

    def merge(self, parts: Sequence[F32], part: U32, index: U32, row_offsets: U32) -> F32:
        """Sums the units of each row: y[r] = sum over t in row_offsets[r] .. row_offsets[r+1], in order, of
        parts[part[t]][index[t]].

        Returns fp32 [rows, hidden]. The first term starts the sum; a row without terms is zero.
        """
        ...

    def sample(self, logits: F32, params: SamplingParams, output_index: int) -> int:
        """Chooses a token id from logits, fp32 [vocab]. Raises ValueError if a logit is NaN or +Inf."""
        ...

    def log_sum_exp(self, logits: F32) -> NDArray[np.float64]:
        """Returns what to subtract from a logit to get its log-probability: fp32 [rows, vocab] -> float64 [rows].

        Raises ValueError if a logit is NaN or +Inf, or all logits of a row are -Inf.
        """
        ...


class TopK(Protocol):
    """The gate's choice alone, which the cpu and reference backends offer besides `Backend`."""

    def top_k(self, logits: F32, k: int, precision: GatePrecision = GatePrecision.FP32) -> GateResult:
        """Chooses k experts for each row from given logits, fp32 [rows, experts]."""
        ...
