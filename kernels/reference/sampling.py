"""Sampling (greedy, temperature, top-k, top-p, min-p) and log-probabilities, bit for bit as docs/numerics.md has
them.
"""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, SamplingParams
from colibri.kernels.log64 import log64
from colibri.kernels.reference.checks import check_array
from colibri.kernels.reference.floats import F64, exp32, to_f32
from colibri.kernels.reference.philox import uniform


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


def check_sampling(params: SamplingParams, output_index: int) -> None:
    """Raises ValueError naming the parameter that is out of range."""
    if not (np.isfinite(params.temperature) and params.temperature >= 0):
        raise ValueError(f"params.temperature: expected a finite number >= 0, got {params.temperature!r}")
    if params.temperature > 0 and not np.float32(2.0**-126) <= np.float32(params.temperature) < np.inf:
        raise ValueError(
            f"params.temperature: expected 0 or a normal fp32 number, got {params.temperature!r}"
        )
    if not 0 < params.top_p <= 1:
        raise ValueError(f"params.top_p: expected above 0, at most 1, got {params.top_p!r}")
    if not 0 <= params.min_p <= 1:
        raise ValueError(f"params.min_p: expected 0 .. 1, got {params.min_p!r}")
    for name, value, bits in (
        ("params.top_k", params.top_k, 32),
        ("params.seed", params.seed, 64),
        ("params.choice", params.choice, 32),
        ("output_index", output_index, 64),
    ):
        if not 0 <= value < 2**bits:
            raise ValueError(f"{name}: expected 0 .. 2**{bits} - 1, got {value!r}")


def _total(e: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Running float64 sum, one term after the other (np.sum would choose its own order)."""
    return float(np.add.accumulate(e)[-1])
