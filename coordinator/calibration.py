"""Measure how much an error in each input of an expert counts: the mean square of that input over a text.

int4 packs are quantised by it (docs/numerics.md). The model runs in fp32 mode, and everything else here is +, -, *,
/ in a fixed order. So the same text gives the same importances, and packs the same bytes, on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.coordinator.layerwise import Layerwise, Progress
from colibri.kernels.api import F32, Array, Backend, ComputeMode, PackedExpert, PackedLinear
from colibri.kernels.layout.packing import gate_up_bytes, separate_gate_up
from colibri.models.dtypes import fp32_from_stored
from colibri.models.model import Model
from colibri.models.packs.weights import Importance

F64 = NDArray[np.float64]

#: Rows that the layer's (inputs) or the expert's (hidden values) own mean counts as: what an expert that met few rows
#: is calibrated by.
_PRIOR_ROWS = 64
_RUN = 16
_LOG2_E, _LN2 = np.float32(1.44269504), np.float32(0.69314718)
_EXP = tuple(np.float32(c) for c in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0))


@dataclass(frozen=True, slots=True)
class Importances:
    """The result of a calibration.

    by_expert: (layer, expert) -> importances of its inputs [hidden] and hidden values [ffn]. An expert that no row
        chose has its layer's inputs and no hidden values.
    tokens: of the text.
    never_chosen: experts that no row chose.
    """

    by_expert: Mapping[tuple[int, int], Importance]
    tokens: int
    never_chosen: int


@dataclass(slots=True)
class _Sums:
    rows: int
    inputs: F64
    hidden: F64


def calibrate(
    model: Model,
    backend: Backend,
    passages: list[list[int]],
    progress: Progress = lambda done, total: None,
) -> Importances:
    """Runs the passages through the model. Raises InvalidInput and CheckpointError."""
    config = model.config
    sums: dict[tuple[int, int], _Sums] = {}

    def observe(layer: int, expert: int, rows: Array, packed: PackedExpert) -> None:
        hidden = _hidden_values(backend, rows, packed)
        sums[layer, expert] = _Sums(len(rows), _squares(rows), _squares(hidden))

    Layerwise(model, backend, ComputeMode.FP32, passages).run(observe, progress)
    found: dict[tuple[int, int], Importance] = {}
    for layer in range(config.layers):
        met = [sums[layer, expert] for expert in range(config.experts) if (layer, expert) in sums]
        rows = sum(one.rows for one in met)
        of_layer = np.sum([one.inputs for one in met], axis=0) / rows
        for expert in range(config.experts):
            one = sums.get((layer, expert))
            if one is None:
                found[layer, expert] = (of_layer.astype(np.float32), None)
                continue
            inputs = (one.inputs + _PRIOR_ROWS * of_layer) / (one.rows + _PRIOR_ROWS)
            # Neurons of one expert mean nothing in another, so the mean over its own stands for the layer's.
            mean = one.hidden.sum() / one.rows / len(one.hidden)
            hidden = (one.hidden + _PRIOR_ROWS * mean) / (one.rows + _PRIOR_ROWS)
            found[layer, expert] = (inputs.astype(np.float32), hidden.astype(np.float32))
    return Importances(found, sum(map(len, passages)), config.layers * config.experts - len(sums))


def _hidden_values(backend: Backend, rows: Array, packed: PackedExpert) -> F32:
    """Returns silu(gate(x)) * up(x), fp32 [rows, ffn]. A silu within a few ulp is enough here."""
    padded = -(-packed.ffn // _RUN) * _RUN
    size, _ = gate_up_bytes(packed.dtype, packed.hidden, packed.ffn, packed.group)
    both = PackedLinear(packed.dtype, 2 * padded, packed.hidden, packed.data[:size], packed.group)
    gate, up = separate_gate_up(backend.linear(rows, both).T, packed.ffn)
    return np.ascontiguousarray((gate / (np.float32(1) + _exp(-gate)) * up).T)


def _exp(x: F32) -> F32:
    """Computes exp with the same code on every machine, which np.exp does not."""
    x = np.clip(x, np.float32(-87), np.float32(88))
    n = np.rint(x * _LOG2_E)
    r = x - n * _LN2
    y = np.full_like(r, _EXP[0])
    for coefficient in _EXP[1:]:
        y = y * r + coefficient
    return np.asarray(np.ldexp(y, n.astype(np.int32)), dtype=np.float32)


def _squares(rows: Array) -> F64:
    wide = (rows if rows.dtype == np.float32 else fp32_from_stored(rows, "bf16")).astype(np.float64)
    return np.asarray((wide * wide).sum(axis=0))  # row after row: of a C-contiguous array
