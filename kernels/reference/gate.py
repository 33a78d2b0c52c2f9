"""The gate: logits, the k largest, softmax over the chosen."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, Array, GateResult, PackedLinear
from colibri.kernels.reference.checks import check_format, check_rows_for, check_top_k
from colibri.kernels.reference.floats import exp32, to_f32, widen
from colibri.kernels.reference.linear import product
from colibri.kernels.reference.packing import unpack_linear


def gate(x: Array, weight: PackedLinear, k: int) -> GateResult:
    check_format("weight", weight, quantised=False)
    check_rows_for(x, weight, wide=True)
    check_top_k(k, weight.n)
    wide = widen(x)
    logits = to_f32(product(wide, widen(unpack_linear(weight))))
    ok = np.asarray(np.isfinite(wide).all(axis=1) & np.isfinite(logits).all(axis=1))
    experts = np.zeros((len(x), k), dtype=np.uint16)
    weights = np.zeros((len(x), k), dtype=np.float32)
    for row in np.flatnonzero(ok):
        # A stable sort of the negated logits: largest first, ties (and -0 = +0) to the lower id.
        chosen = np.argsort(-logits[row], kind="stable")[:k]
        experts[row] = chosen
        weights[row] = softmax_in_order(logits[row, chosen])
    return GateResult(experts, weights, ok)


def softmax_in_order(logits: F32) -> F32:
    """exp32(l_s - l_0) over its sum in slot order; the contract's roundings exactly."""
    e = exp32(logits - logits[0])
    total = np.float32(0)
    for term in e:
        total = total + term
    return to_f32(e / total)
