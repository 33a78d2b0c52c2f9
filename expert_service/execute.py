"""Compute units: the one routine for workers and for the local executor."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import F32, U32, Array, Backend, PackedExpert, UnitBatch
from colibri.v1 import expert_pb2

_BF16_EXPONENT = 0x7F80


class Experts(Protocol):
    """A source of packed experts (colibri.expert_service.store.WeightStore)."""

    def get(self, layer: int, expert: int) -> PackedExpert: ...


def run_units(backend: Backend, store: Experts, layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
    """Computes a message's units. Returns fp32 [U, hidden] and their status, u32 [U].

    x: [R, hidden], fp32 or bf16 (uint16).
    batch: its rows are indices into x.

    A row that holds NaN or Inf fails alone: its units get the status NOT_FINITE and zeros, and the others are what
    they would be without it. Raises ExpertNotLoaded, or the backend's ValueError or TypeError for a batch that does
    not fit.
    """
    experts = [store.get(layer, expert) for expert in batch.group_expert.tolist()]
    status = np.zeros(len(batch.unit_slots), np.uint32)
    bad = _rows_not_finite(x)
    if bad is None:
        return backend.expert_units(x, experts, batch), status
    clean = x.copy()
    clean[bad] = 0
    units = backend.expert_units(clean, experts, batch)
    failed = batch.entry_unit[bad[batch.entry_row]]
    status[failed] = expert_pb2.UNIT_STATUS_NOT_FINITE
    units[failed] = 0.0
    return units, status


def _rows_not_finite(x: Array) -> NDArray[np.bool_] | None:
    """Returns bool [R], true for rows that are not finite; None if all are finite."""
    bad = (x & _BF16_EXPONENT) == _BF16_EXPONENT if x.dtype == np.uint16 else ~np.isfinite(x)
    if not np.count_nonzero(bad):
        return None
    return np.asarray(bad.any(axis=1))
