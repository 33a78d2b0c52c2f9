"""The one routine: what the backend computes, and bad rows that fail alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from colibri.errors import ExpertNotLoaded
from colibri.expert_service.execute import run_units
from colibri.kernels.api import ComputeMode, PackedExpert, UnitBatch
from colibri.kernels.arithmetic.floats import to_rows
from colibri.kernels.factory import make_backend
from tests.support.frames import f32, u32

HIDDEN, FFN = 32, 48
BACKEND = make_backend("reference")


class Held:
    """Experts of layer 1, without 2."""

    def __init__(self, mode: ComputeMode) -> None:
        draw = np.random.default_rng(3)
        self._experts = {}
        for expert in (0, 1, 3):
            gate, up, down = (
                to_rows(draw.standard_normal(shape) * 0.2, mode)
                for shape in ((FFN, HIDDEN), (FFN, HIDDEN), (HIDDEN, FFN))
            )
            self._experts[expert] = BACKEND.pack_expert(gate, up, down, mode)

    def get(self, layer: int, expert: int) -> PackedExpert:
        if layer != 1 or expert not in self._experts:
            raise ExpertNotLoaded(f"expert {expert} of layer {layer} is not loaded here")
        return self._experts[expert]


def batch(rows: int) -> UnitBatch:
    """Every row: experts 0 and 3 folded, expert 1 alone."""
    row = np.arange(rows, dtype=np.uint32)
    return UnitBatch(
        group_expert=u32(0, 1, 3),
        group_count=u32(rows, rows, rows),
        entry_row=np.tile(row, 3),
        entry_slot=np.repeat(u32(0, 2, 1), rows),
        entry_unit=np.concatenate((2 * row, 2 * row + 1, 2 * row)),
        entry_weight=np.random.default_rng(rows).random(3 * rows, np.float32),
        unit_slots=np.tile(u32(2, 1), rows),
    )


@pytest.mark.parametrize("mode", list(ComputeMode))
@pytest.mark.parametrize("rows", [1, 2, 15, 33])
def test_it_is_the_backends_routine(mode: ComputeMode, rows: int) -> None:
    held = Held(mode)
    x = to_rows(np.random.default_rng(rows).standard_normal((rows, HIDDEN)), mode)
    units, status = run_units(BACKEND, held, 1, x, batch(rows))
    expected = BACKEND.expert_units(x, [held.get(1, expert) for expert in (0, 1, 3)], batch(rows))
    assert units.tobytes() == expected.tobytes()
    assert (status.dtype, status.tolist()) == (np.uint32, [0] * 2 * rows)


@pytest.mark.parametrize("mode", list(ComputeMode))
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_bad_row_fails_alone(mode: ComputeMode, poison: float) -> None:
    held = Held(mode)
    good = np.random.default_rng(5).standard_normal((7, HIDDEN))
    bad = good.copy()
    bad[2, HIDDEN - 1] = bad[5, 0] = poison
    expected, _ = run_units(BACKEND, held, 1, to_rows(good, mode), batch(7))
    x = to_rows(bad, mode)
    before = x.copy()
    units, status = run_units(BACKEND, held, 1, x, batch(7))
    assert x.tobytes() == before.tobytes()
    hit = [4, 5, 10, 11]
    assert np.flatnonzero(status).tolist() == hit
    assert set(status[hit].tolist()) == {1}
    assert not units[hit].any()
    others = [unit for unit in range(14) if unit not in hit]
    assert units[others].tobytes() == expected[others].tobytes()


def test_the_largest_finite_bf16_is_finite() -> None:
    held = Held(ComputeMode.BF16)
    x = np.zeros((1, HIDDEN), np.uint16)
    x[0, 0], x[0, 1] = 0x7F7F, 0xFF7F
    _, status = run_units(BACKEND, held, 1, x, batch(1))
    assert not status.any()


@pytest.mark.parametrize(("layer", "missing"), [(1, 2), (0, 0)])
def test_an_expert_that_is_not_held(layer: int, missing: int) -> None:
    asked: Any = batch(1)
    if layer == 1:
        asked = UnitBatch(u32(2), u32(1), u32(0), u32(0), u32(0), f32(1), u32(1))
    with pytest.raises(ExpertNotLoaded, match=f"expert {missing} of layer {layer} is not loaded here"):
        run_units(BACKEND, Held(ComputeMode.FP32), layer, np.zeros((1, HIDDEN), np.float32), asked)
