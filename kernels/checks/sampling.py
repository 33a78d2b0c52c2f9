"""Check how a token is to be sampled."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import SamplingParams


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
