"""Sampling and log-probabilities."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import F32, SamplingParams
from colibri.kernels.arithmetic.log64 import log64
from colibri.kernels.arithmetic.philox import uniform
from colibri.kernels.checks.arrays import check_array
from colibri.kernels.checks.sampling import check_sampling
from colibri.kernels.cuda.device import Device

_THREADS = 256
_NO_VALUE = "expected at least one finite value, got none"


def sample(device: Device, logits: F32, params: SamplingParams, output_index: int) -> int:
    check_array("logits", logits, np.float32, ("vocabulary",))
    check_sampling(params, output_index)
    count = len(logits)
    if not count:
        raise ValueError(f"logits: {_NO_VALUE}")
    padded = 1 << (count - 1).bit_length()
    result = device.zeros(8)
    device.launch(
        "sample_token",
        1,
        _THREADS,
        _THREADS * 8,
        device.upload(logits),
        device.empty(padded * 8),
        device.empty(count * 4),
        result,
        np.uint32(count),
        np.uint32(padded),
        np.float32(params.temperature),
        np.uint32(params.top_k),
        np.float64(params.top_p),
        np.float64(params.min_p),
        np.float64(uniform(params.seed, params.choice, output_index)),
    )
    chosen, state = (int(each) for each in device.download(result, (2,), np.uint32))
    if state == 3:
        raise ValueError(
            f"params.temperature: expected finite logit / temperature, got {params.temperature!r}"
        )
    if state:
        raise _bad("logits", logits, state)
    return chosen


def log_sum_exp(device: Device, logits: F32) -> NDArray[np.float64]:
    check_array("logits", logits, np.float32, ("rows", "vocabulary"))
    rows, count = logits.shape
    if not rows:
        return np.zeros(0, dtype=np.float64)
    if not count:
        raise ValueError(f"logits[0]: {_NO_VALUE}")
    largest, totals, status = device.empty(rows * 4), device.empty(rows * 8), device.empty(rows * 4)
    device.launch(
        "softmax_totals",
        rows,
        _THREADS,
        _THREADS * 12,
        device.upload(logits),
        largest,
        totals,
        status,
        np.uint32(count),
    )
    states = device.download(status, (rows,), np.uint32)
    for row in np.flatnonzero(states):
        raise _bad(f"logits[{row}]", logits[row], int(states[row]))
    most = device.download(largest, (rows,), np.float32).tolist()
    sums = device.download(totals, (rows,), np.float64).tolist()
    return np.array([float(m) + log64(t) for m, t in zip(most, sums, strict=True)], dtype=np.float64)


def _bad(name: str, logits: F32, state: int) -> ValueError:
    if state == 1:
        at = int(np.flatnonzero(np.isnan(logits) | (logits == np.inf))[0])
        where = f"{name}[{at}]" if name == "logits" else f"{name[:-1]}, {at}]"
        return ValueError(f"{where}: expected no NaN and no +Inf, got {logits[at]}")
    return ValueError(f"{name}: {_NO_VALUE}")
