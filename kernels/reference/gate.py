"""The gate: logits, the k largest, softmax over the chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import F32, Array, GatePrecision, GateResult, PackedLinear
from colibri.kernels.arithmetic.floats import exp32, to_f32, widen
from colibri.kernels.checks.arrays import check_array, check_format, check_rows_for, check_top_k
from colibri.kernels.layout.packing import unpack_linear
from colibri.kernels.reference.linear import product


def gate(x: Array, weight: PackedLinear, k: int, precision: GatePrecision = GatePrecision.FP32) -> GateResult:
    check_format("weight", weight, quantised=False)
    check_rows_for(x, weight, wide=True)
    check_top_k(k, weight.n, "weight")
    wide = widen(x)
    return _choose(to_f32(product(wide, widen(unpack_linear(weight)))), k, precision)


def top_k(logits: F32, k: int, precision: GatePrecision = GatePrecision.FP32) -> GateResult:
    check_array("logits", logits, np.float32, ("rows", "experts"))
    check_top_k(k, logits.shape[1], "logits")
    return _choose(to_f32(logits), k, precision)


def _choose(logits: F32, k: int, precision: GatePrecision) -> GateResult:
    ok = np.asarray(np.isfinite(logits).all(axis=1))
    experts = np.zeros((len(logits), k), dtype=np.uint16)
    weights = np.zeros((len(logits), k), dtype=np.float32)
    differing = 0
    for row in np.flatnonzero(ok):
        exact = _largest(logits[row], k)
        chosen = exact
        if precision is GatePrecision.INT16:
            chosen = _largest(int16_keys(logits[row]), k)
            differing += not np.array_equal(chosen, exact)
        experts[row] = chosen
        weights[row] = softmax_in_order(logits[row, chosen])
    return GateResult(experts, weights, ok, differing)


def _largest(keys: NDArray[Any], k: int) -> NDArray[np.intp]:
    """A stable sort of the negated keys: largest first, ties (and -0 = +0) to the lower id."""
    return np.argsort(-keys, kind="stable")[:k]


def int16_keys(logits: F32) -> NDArray[np.int32]:
    """-32767 .. 32767: the logits over the row's largest magnitude, rounded to nearest even; all 0 where that
    ratio is no finite fp32 number."""
    largest = to_f32(np.abs(logits).max())
    with np.errstate(divide="ignore", over="ignore"):
        scale = np.float32(32767) / largest
    if not np.isfinite(scale):
        return np.zeros(len(logits), dtype=np.int32)
    return np.rint(logits * scale).astype(np.int32)


def softmax_in_order(logits: F32) -> F32:
    """exp32(l_s - the largest of them) over the sum in slot order; the contract's roundings exactly."""
    e = exp32(logits - logits.max())
    total = np.float32(0)
    for term in e:
        total = total + term
    return to_f32(e / total)
