"""One MoE layer at Mixtral-8x7B shapes, random weights: the cpu backend against the float64 reference."""

from __future__ import annotations

import numpy as np

from benchmarks.table import Outcome
from colibri.kernels.api import Array, Backend, ComputeMode, PackedExpert, UnitBatch
from colibri.kernels.factory import make_backend

HIDDEN, FFN, EXPERTS, TOP_K = 4096, 14336, 8, 2
BOUND = {ComputeMode.FP32: 1e-5, ComputeMode.BF16: 5e-3}


def _bf16_bits(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _expert(seed: int, index: int, mode: ComputeMode) -> tuple[Array, Array, Array]:
    draw = np.random.Generator(np.random.SFC64([seed, index]))
    shapes = ((FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN))
    weights = [draw.standard_normal(s, dtype=np.float32) * np.float32(s[1] ** -0.5) for s in shapes]
    gate, up, down = (_bf16_bits(w) if mode is ComputeMode.BF16 else w for w in weights)
    return gate, up, down


def _entries(routed: np.ndarray, weights: np.ndarray, only: int | None) -> UnitBatch:
    """All slots as units of their own, in (row, slot) order; `only` keeps one expert's."""
    rows, slots = np.indices(routed.shape)
    flat = [a.reshape(-1).astype(np.uint32) for a in (routed, rows, slots)]
    unit = np.arange(flat[0].size, dtype=np.uint32)
    keep = np.ones(unit.size, bool) if only is None else flat[0] == only
    order = np.lexsort((flat[1][keep], flat[0][keep]))
    experts, row, slot, unit_ids = (a[keep][order] for a in (*flat, unit))
    groups, counts = np.unique(experts, return_counts=True)
    if only is not None:
        unit_ids = np.searchsorted(unit[keep], unit_ids).astype(np.uint32)
    return UnitBatch(
        groups.astype(np.uint32), counts.astype(np.uint32), row, slot, unit_ids,
        weights.reshape(-1)[keep][order], np.ones(int(keep.sum()), np.uint32),
    )  # fmt: skip


def relative_rms(rows: int, mode: ComputeMode, seed: int) -> float:
    """Relative RMS difference of the merged rows between the two backends, over `rows` random rows."""
    draw = np.random.Generator(np.random.SFC64([seed, 1000]))
    fast, slow = make_backend("cpu", threads=2), make_backend("reference")
    x32 = draw.standard_normal((rows, HIDDEN), dtype=np.float32)
    x: Array = _bf16_bits(x32) if mode is ComputeMode.BF16 else x32
    gate32 = draw.standard_normal((EXPERTS, HIDDEN), dtype=np.float32) * np.float32(HIDDEN**-0.5)
    routed = fast.gate(x, fast.pack_linear(gate32, ComputeMode.FP32), TOP_K)
    packed: list[PackedExpert] = [fast.pack_expert(*_expert(seed, e, mode), mode) for e in range(EXPERTS)]
    batch = _entries(routed.experts, routed.weights, None)
    units = fast.expert_units(x, [packed[int(g)] for g in batch.group_expert], batch)
    expected = np.zeros_like(units)
    flat = routed.experts.reshape(-1)
    for e in sorted(set(flat.tolist())):
        one = _entries(routed.experts, routed.weights, e)
        expected[flat == e] = slow.expert_units(x, [slow.pack_expert(*_expert(seed, e, mode), mode)], one)
    return _merged_difference(fast, units, expected, rows)


def _merged_difference(backend: Backend, got: np.ndarray, expected: np.ndarray, rows: int) -> float:
    index = np.arange(rows * TOP_K, dtype=np.uint32)
    offsets = np.arange(0, rows * TOP_K + 1, TOP_K, dtype=np.uint32)
    merged = [
        backend.merge([p], np.zeros_like(index), index, offsets).astype(np.float64) for p in (got, expected)
    ]
    return float(np.sqrt(np.mean((merged[0] - merged[1]) ** 2) / np.mean(merged[1] ** 2)))


def measure() -> Outcome:
    found = {mode: relative_rms(17, mode, seed=8) for mode in ComputeMode}
    text = ", ".join(f"{mode.value} {error:.1e}" for mode, error in found.items())
    bound = ", ".join(f"{mode.value} {b:.0e}" for mode, b in BOUND.items())
    return Outcome(f"relative RMS {text}", all(found[m] <= BOUND[m] for m in found), f"bound {bound}")
