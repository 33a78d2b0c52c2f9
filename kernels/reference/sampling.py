"""Sampling (greedy, temperature, top-k, top-p, min-p) and log-probabilities, bit for bit as docs/numerics.md has
them.
"""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, SamplingParams
from colibri.kernels.arithmetic.floats import F64, exp32, to_f32
from colibri.kernels.arithmetic.log64 import log64
from colibri.kernels.arithmetic.philox import uniform
from colibri.kernels.checks.arrays import check_array
from colibri.kernels.checks.sampling import check_sampling


def sample(logits: F32, params: SamplingParams, output_index: int) -> int:
    check_array("logits", logits, np.float32, ("vocabulary",))
    check_sampling(params, output_index)
    bad = np.flatnonzero(np.isnan(logits) | (logits == np.inf))
    if bad.size:
        raise ValueError(f"logits[{bad[0]}]: expected no NaN and no +Inf, got {logits[bad[0]]}")
    if not np.any(np.isfinite(logits)):
        raise ValueError("logits: expected at least one finite value, got none")
    logits = to_f32(logits)
    if params.temperature == 0:
        return int(np.argmax(logits))
    with np.errstate(over="ignore"):
        z = to_f32(logits / np.float32(params.temperature))
    largest = z.max()
    if not np.isfinite(largest):
        raise ValueError(
            f"params.temperature: expected finite logit / temperature, got {params.temperature!r}"
        )
    order = np.argsort(-z, kind="stable")
    if params.top_k:
        order = order[: params.top_k]
    with np.errstate(over="ignore"):
        e = exp32(z - largest).astype(np.float64)
    if params.top_p < 1:
        needed = params.top_p * _total(e[np.sort(order)])
        running = np.add.accumulate(e[order])
        reached = np.flatnonzero(running >= needed)
        if reached.size:
            order = order[: reached[0] + 1]
    kept = np.sort(order)
    kept = kept[e[kept] >= params.min_p]
    running = np.add.accumulate(e[kept])
    target = uniform(params.seed, params.choice, output_index) * running[-1]
    return int(kept[np.flatnonzero(running > target)[0]])


def log_sum_exp(logits: F32) -> F64:
    check_array("logits", logits, np.float32, ("rows", "vocabulary"))
    out = np.empty(len(logits), dtype=np.float64)
    for row, values in enumerate(logits):
        bad = np.flatnonzero(np.isnan(values) | (values == np.inf))
        if bad.size:
            raise ValueError(f"logits[{row}, {bad[0]}]: expected no NaN and no +Inf, got {values[bad[0]]}")
        if not np.any(np.isfinite(values)):
            raise ValueError(f"logits[{row}]: expected at least one finite value, got none")
        values = to_f32(values)
        largest = values.max()
        with np.errstate(over="ignore"):
            out[row] = float(largest) + log64(_total(exp32(values - largest).astype(np.float64)))
    return out


def _total(e: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Running float64 sum, one term after the other (np.sum would choose its own order)."""
    return float(np.add.accumulate(e)[-1])
