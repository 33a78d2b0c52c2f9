"""Compute with loaded experts once, before requests need them."""

from __future__ import annotations

import numpy as np

from colibri.errors import ExpertNotLoaded
from colibri.expert_service.execute import Experts, run_units
from colibri.kernels.api import Backend, ComputeMode, UnitBatch
from colibri.models.config import MixtralConfig

_DTYPES = {ComputeMode.FP32: np.float32, ComputeMode.BF16: np.uint16}


def warm_up(
    backend: Backend, store: Experts, mode: ComputeMode, config: MixtralConfig, key: tuple[int, int]
) -> None:
    """Computes one row of zeros through one expert, so that code, threads and buffers have been used once.

    The pages of every expert are in memory already, since packing has written them.
    """
    layer, expert = key
    one, zero = np.ones(1, np.uint32), np.zeros(1, np.uint32)
    batch = UnitBatch(
        group_expert=np.array([expert], np.uint32),
        group_count=one,
        entry_row=zero,
        entry_slot=zero,
        entry_unit=zero,
        entry_weight=np.ones(1, np.float32),
        unit_slots=one,
    )
    try:
        run_units(backend, store, layer, np.zeros((1, config.hidden), _DTYPES[mode]), batch)
    except ExpertNotLoaded:
        return  # dropped again meanwhile
