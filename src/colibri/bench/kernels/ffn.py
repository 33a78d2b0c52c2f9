"""The expert FFN: every row to one expert, the expert another one at every call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from colibri.bench.kernels.timing import Case
from colibri.bench.kernels.weights import Format, blocks, copies, expert, random_rows
from colibri.kernels.api import Array, PackedExpert, UnitBatch
from colibri.kernels.cpu.backend import CpuBackend


def cases(
    backend: CpuBackend, shape: tuple[int, int], kinds: Sequence[Format], rows: Sequence[int], rotate: int
) -> Iterator[list[Case]]:
    """shape: hidden, ffn; rotate: bytes of weights to go through. One list for each format."""
    hidden, ffn = shape
    for kind in kinds:
        experts = copies(expert(backend, hidden, ffn, kind), rotate)
        found = []
        for count in rows:
            x = random_rows((count, hidden), kind.rows, 2)
            found.append(
                Case(
                    "ffn",
                    f"{hidden}/{ffn}",
                    kind.name,
                    count,
                    partial(_run, backend, x, experts, _batch(count)),
                    blocks(experts),
                    2.0 * count * 3 * hidden * ffn,
                    kind.peak(backend.isa),
                )
            )
        yield found


def _batch(rows: int) -> UnitBatch:
    u32 = np.uint32
    row, one = np.arange(rows, dtype=u32), np.ones(rows, u32)
    zero, weights = np.zeros(rows, u32), np.full(rows, 0.5, np.float32)
    return UnitBatch(zero[:1], np.array([rows], u32), row, zero, row, weights, one)


def _run(backend: CpuBackend, x: Array, experts: Sequence[PackedExpert], batch: UnitBatch, turn: int) -> None:
    backend.expert_units(x, [experts[turn % len(experts)]], batch)
