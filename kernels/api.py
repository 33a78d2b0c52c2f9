"""The one small API behind which every backend of the mathematics stands.

Belongs here and below: pure functions of arrays (gate, group, expert FFN, merge, attention, norms, head, sampling,
packing). Does not belong here: models, placement, transports, files. This folder imports NumPy and nothing of Colibri
but itself, and has no `__init__.py` (see pyproject.toml).

Arrays: bf16 is `uint16` bit patterns, fp16 `float16`, fp32 `float32`; C-contiguous. What each function computes, to the
bit, is docs/numerics.md. Every function checks shapes, dtypes and index ranges and raises ValueError or TypeError that
names the argument, what was expected and what came.
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
    """Where rounding happens; one mode for every batch size (docs/numerics.md)."""

    FP32 = "fp32"
    BF16 = "bf16"


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A matrix [n, k] in the packed layout. `dtype`: 'bf16', 'fp16', 'fp32', 'int8' or 'int4'; `data`: uint8,
    64-byte aligned; `group`: elements of K that share a scale (32, 64 or 128), 0 for weights without scales."""

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
    """What orders a row's logits: themselves, or 16-bit integers scaled to the row's largest magnitude. Weights are the
    softmax of the chosen fp32 logits either way (docs/numerics.md)."""

    FP32 = "fp32"
    INT16 = "int16"


@dataclass(frozen=True, slots=True)
class GateResult:
    """`experts` uint16 [rows, k], `weights` fp32 [rows, k] (slot 0 = largest logit), `ok` bool [rows].

    A row that is not ok held NaN or Inf; its experts and weights are zero and must not be dispatched. differing: rows
    of which the fp32 logits would have chosen otherwise, in whatever slot (0 in fp32 precision).
    """

    experts: NDArray[np.uint16]
    weights: F32
    ok: NDArray[np.bool_]
    differing: int = 0


@dataclass(frozen=True, slots=True)
class UnitBatch:
    """Work of one worker in one layer. N entries in G groups, giving U units.

    group_expert [G] ascending expert ids; group_count [G] entries of each, > 0; entry_row [N] row of x; entry_slot [N]
    gate slot; entry_unit [N] unit it belongs to; entry_weight [N] fp32; unit_slots [U]: 1, or n for a folded prefix
    0..n-1 of one row's slots. All uint32 but the weights.
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
    """cos, sin: fp32 [positions, head_dim / 2]."""

    cos: F32
    sin: F32


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """temperature 0 = greedy; top_k 0 = off; top_p 1 = off; min_p 0 = off. seed: 64 bits; choice: index of the
    choice.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    choice: int = 0
    min_p: float = 0.0


class Backend(Protocol):
    """One compute backend: an instruction path and a pool of threads. Calls from several threads are serialised."""

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
        """Zeroed memory for packed weights that come from elsewhere: uint8 [nbytes], 64-byte aligned, on huge pages
        where the backend has them."""
        ...

    def pack_linear(self, weight: Array, mode: ComputeMode) -> PackedLinear:
        """weight [n, k] bf16, fp16 or fp32. In bf16 mode other dtypes are rounded to bf16."""
        ...

    def pack_expert(self, gate: Array, up: Array, down: Array, mode: ComputeMode) -> PackedExpert:
        """gate, up [ffn, hidden], down [hidden, ffn], one dtype for all three."""
        ...

    def quantize_linear(
        self, weight: Array, dtype: str, group: int, importance: F32 | None = None
    ) -> PackedLinear:
        """weight [n, k] bf16, fp16 or fp32 -> integers with a bf16 scale per row and `group` elements of K.

        dtype: 'int8' or 'int4'; group: 32, 64 or 128 (the last one of a row may be shorter). importance fp32 [k], int4
        only: how much an error in each input counts, for example the mean square of that input over a calibration text;
        None: the error of a large weight counts more (docs/numerics.md). int4 searches its scales; the weighted squared
        error is never above that of plain rounding. The same bytes from every backend. Raises ValueError for NaN or Inf
        among the weights."""
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
        """quantize_linear for gate, up [ffn, hidden] and down [hidden, ffn], one dtype for all three. importance: of
        the expert's inputs [hidden] and of its hidden values silu(g) * u [ffn]."""
        ...

    def embed(self, table: PackedLinear, ids: U32) -> F32:
        """Rows `ids` of a packed [vocab, hidden] matrix, widened: fp32 [rows, hidden]."""
        ...

    def rms_norm(self, x: F32, weight: F32, eps: float, mode: ComputeMode) -> Array:
        """x fp32 [rows, hidden] -> [rows, hidden] in the mode's row dtype."""
        ...

    def linear(self, x: Array, weight: PackedLinear) -> F32:
        """x [rows, k] fp32, or bf16 with bf16, int8 or int4 weights -> fp32 [rows, n]."""
        ...

    def add_inplace(self, x: F32, y: F32) -> None:
        """x += y, both fp32 [rows, hidden]."""
        ...

    def rope_table(self, theta: float, head_dim: int, positions: int) -> RopeTable: ...

    def rope_and_store(self, qkv: F32, rope: RopeTable, kv: KvView, heads: int) -> F32:
        """qkv fp32 [rows, (heads + 2 kv_heads) * head_dim] -> rotated q fp32 [rows, heads * head_dim]; writes K and
        V."""
        ...

    def attention(self, q: F32, kv: KvView, window: int | None, mode: ComputeMode) -> Array:
        """q fp32 [rows, heads * head_dim] -> [rows, heads * head_dim] in the mode's row dtype."""
        ...

    def gate(
        self, x: Array, weight: PackedLinear, k: int, precision: GatePrecision = GatePrecision.FP32
    ) -> GateResult:
        """x [rows, hidden] in the mode's row dtype; weight [experts, hidden], at most 65,536 experts; k: 1 to 16.

        Raises ValueError for a precision that the backend does not have (cuda: int16)."""
        ...

    def group(self, keys: U32, buckets: int) -> tuple[U32, U32]:
        """Counting sort, linear and stable: offsets [buckets + 1] and order [len(keys)] (indices, no copies of
        rows)."""
        ...

    def expert_units(self, x: Array, experts: Sequence[PackedExpert], batch: UnitBatch) -> F32:
        """The expert FFN over a worker's whole batch: x [R, hidden] in the mode's row dtype, experts[g] for group g ->
        fp32 [U, hidden], each unit weighted and folded."""
        ...

    def merge(self, parts: Sequence[F32], part: U32, index: U32, row_offsets: U32) -> F32:
        """y[r] = sum in order over t in row_offsets[r] .. row_offsets[r+1] of parts[part[t]][index[t]]: fp32 [rows,
        hidden].

        The first term starts the sum; a row without terms is zero."""
        ...

    def sample(self, logits: F32, params: SamplingParams, output_index: int) -> int:
        """logits fp32 [vocab] -> id. Raises ValueError when a logit is NaN or +Inf."""
        ...

    def log_sum_exp(self, logits: F32) -> NDArray[np.float64]:
        """logits fp32 [rows, vocab] -> float64 [rows]: what to subtract from a logit for its log-probability.

        Raises ValueError when a logit is NaN or +Inf, or all of a row are -Inf."""
        ...


class TopK(Protocol):
    """The gate's choice alone: what the cpu and reference backends have beside `Backend`."""

    def top_k(self, logits: F32, k: int, precision: GatePrecision = GatePrecision.FP32) -> GateResult:
        """The gate from logits fp32 [rows, experts] that are there already."""
        ...
