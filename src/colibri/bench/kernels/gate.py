"""The gate: choosing alone, from logits in a cache, and the whole of it from Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from colibri.bench.kernels.timing import Case
from colibri.bench.kernels.weights import random_rows, raw
from colibri.kernels.api import F32, Array, ComputeMode, PackedLinear
from colibri.kernels.cpu.backend import CpuBackend, huge_bytes

#: Experts and k of the choice alone.
CHOICES = ((8, 2), (64, 2), (64, 6), (256, 2), (256, 8), (1024, 2), (1024, 8))
#: Where its logits lie: in the first-level cache, the second-level one, or, as a large batch, beyond.
_L1_BYTES, _L2_BYTES, _LARGE_ROWS = 32 << 10, 768 << 10, 4096


def top_k(backend: CpuBackend) -> Iterator[list[Case]]:
    """Time a row of the native loop, on one thread, weights included. One list."""
    found = []
    for experts, k in CHOICES:
        for rows in (_L1_BYTES // (4 * experts), _L2_BYTES // (4 * experts), _LARGE_ROWS):
            # As the gate's own logits lie: on a boundary of 64 bytes.
            logits = huge_bytes(rows * experts * 4).view(np.float32).reshape(rows, experts)
            logits[:] = random_rows((rows, experts), "fp32", 1)
            times = max(1, (1 << 22) // (rows * experts))
            call = partial(_choose, backend, logits, k, times)
            found.append(Case("top-k", f"{k} of {experts}", "fp32", rows, call, [], 0.0, "", rows * times))
    yield found


def _choose(backend: CpuBackend, logits: F32, k: int, times: int, turn: int) -> None:
    backend.top_k_pass(logits, k, times)


def whole(backend: CpuBackend, hidden: int, rows: Sequence[int]) -> Iterator[list[Case]]:
    """Product, choice and weights, called from Python; bf16 rows, top-2. One list for each number of experts."""
    for experts in (8, 64, 256):
        weight = backend.pack_linear(random_rows((experts, hidden), "bf16", 1), ComputeMode.FP32)
        found = []
        for count in rows:
            x = random_rows((count, hidden), "bf16", 2)
            found.append(
                Case(
                    "gate",
                    f"{hidden} -> {experts}",
                    "bf16",
                    count,
                    partial(_gate, backend, x, weight),
                    [[*raw(x), weight.data]],
                    2.0 * count * experts * hidden,
                    "fp32",
                )
            )
        yield found


def _gate(backend: CpuBackend, x: Array, weight: PackedLinear, turn: int) -> None:
    backend.gate(x, weight, 2)
