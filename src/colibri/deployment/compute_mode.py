"""Choose the compute mode of a model, and say what a mode costs that the model was not made for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from colibri.kernels.api import ComputeMode
from colibri.models.checkpoint import Checkpoint
from colibri.models.dtypes import BF16, bf16_from_fp32, fp32_from_stored
from colibri.models.model import Model, check_mode, default_mode


def choose_mode(model: Model, asked: str | None, log: Callable[[str], None]) -> ComputeMode:
    """Returns `asked`, else bf16 for bf16 checkpoints and for packs without fp16 and fp32 matrices, fp32 for others.

    bf16 mode rounds the weights of other checkpoints; the error is then measured on one expert and logged. Raises
    ConfigError for a mode that a pack was not made for.
    """
    if asked is None:
        return default_mode(model)
    mode, stored = ComputeMode(asked), model.config.dtype
    check_mode(model, mode)
    if isinstance(model, Checkpoint) and mode is ComputeMode.BF16 and stored != BF16.name:
        error = rounding_error(model)
        log(f"bf16 mode rounds the {stored} weights: relative RMS error {error:.1e} (first expert)")
    return mode


def rounding_error(checkpoint: Checkpoint) -> float:
    """Relative RMS error of the first expert's gate matrix when it is rounded to bf16."""
    exact = fp32_from_stored(checkpoint.expert(0, 0).gate, checkpoint.config.dtype)
    rounded = fp32_from_stored(bf16_from_fp32(exact), BF16.name)
    norm = float(np.linalg.norm(exact.astype(np.float64)))
    return float(np.linalg.norm(rounded.astype(np.float64) - exact)) / norm if norm else 0.0
