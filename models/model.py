"""A model from disk, whichever form it has: a Hugging Face folder or a pack of one; and what it computes."""

from __future__ import annotations

import os
from pathlib import Path

from colibri.errors import CheckpointError, ConfigError
from colibri.kernels.api import Backend, ComputeMode, PackedExpert, PackedLinear
from colibri.kernels.reference.packing import packed_expert_bytes
from colibri.models.checkpoint import Checkpoint
from colibri.models.fetched_pack import open_fetched
from colibri.models.finite import check_finite
from colibri.models.home import colibri_home
from colibri.models.pack import Pack, is_pack
from colibri.models.remote_folder import is_url
from colibri.models.weight_format import WeightFormat
from colibri.numerics import EngineNumerics, ExpertNumerics

Model = Checkpoint | Pack


def open_model(place: str | Path, home: Path | None = None) -> Model:
    """A folder, or a URL of a pack, whose weights are then fetched when they are wanted and kept under `home` (default:
    Colibri's). Raises CheckpointError as Checkpoint.open and Pack.open do, and what open_fetched raises."""
    if isinstance(place, str) and is_url(place):
        return open_fetched(place, colibri_home(os.environ) if home is None else home)
    path = place
    return Pack.open(path) if is_pack(Path(path)) else Checkpoint.open(path)


def open_checkpoint(path: str | Path, wanted_by: str) -> Checkpoint:
    """For what needs the original weights. Raises CheckpointError, also for a pack."""
    if is_pack(Path(path)):
        raise CheckpointError.of(path, "", f"a checkpoint, which {wanted_by} needs", "a pack")
    return Checkpoint.open(path)


def default_mode(model: Model) -> ComputeMode:
    """bf16 where all weights can be used so without rounding any, else fp32."""
    formats = (
        (model.manifest.experts, model.manifest.dense)
        if isinstance(model, Pack)
        else (WeightFormat(model.config.dtype),)
    )
    return ComputeMode.BF16 if all(kind.takes_bf16_rows for kind in formats) else ComputeMode.FP32


def check_mode(model: Model, mode: ComputeMode) -> None:
    """A checkpoint is rounded for bf16 mode, a pack is what it is: raises ConfigError where it cannot be used so."""
    if not isinstance(model, Pack) or mode is ComputeMode.FP32:
        return
    manifest = model.manifest
    for flag, kind in (("--dtype", manifest.experts), ("--dense-dtype", manifest.dense)):
        if not kind.takes_bf16_rows:
            expected = f"fp32 with this pack, whose {flag} is {kind.name} (or make one with {flag} bf16)"
            raise ConfigError("--compute-mode", expected, mode.value)


def formats(model: Model, mode: ComputeMode) -> tuple[WeightFormat, WeightFormat]:
    """Of the experts and of the dense matrices, as they lie in memory in that mode."""
    if isinstance(model, Pack):
        return model.manifest.experts, model.manifest.dense
    plain = WeightFormat("bf16" if mode is ComputeMode.BF16 else model.config.dtype)
    return plain, plain


def expert_bytes(model: Model, mode: ComputeMode) -> int:
    """Of one expert in memory."""
    kind = formats(model, mode)[0]
    return packed_expert_bytes(kind.dtype, model.config.hidden, model.config.ffn, kind.group)


def expert_numerics(model: Model, backend: str, mode: ComputeMode, family: str = "any") -> ExpertNumerics:
    """What its experts compute on a backend, by name and, of CUDA, instruction family."""
    kind = formats(model, mode)[0]
    if kind.quantised:
        return ExpertNumerics.of_quantised(backend, mode.value, kind.dtype, kind.group, family)
    return ExpertNumerics.of(backend, mode.value, kind.dtype, family)


def engine_numerics(
    model: Model, backend: str, mode: ComputeMode, gate_precision: str = "fp32", family: str = "any"
) -> EngineNumerics:
    """What whole answers of it are computed with. backend, family: of the experts."""
    dense = formats(model, mode)[1]
    return EngineNumerics(
        expert_numerics(model, backend, mode, family), dense.name, mode.value, gate_precision
    )


def load_expert(model: Model, layer: int, expert: int, backend: Backend, mode: ComputeMode) -> PackedExpert:
    """Read from a pack, or read and packed from a checkpoint. Raises CheckpointError, also for weights that are not
    finite."""
    if isinstance(model, Pack):
        return model.expert(layer, expert, backend)
    weights = model.expert(layer, expert)
    parts = (weights.gate, weights.up, weights.down)
    for name, part in zip(("gate", "up", "down"), parts, strict=True):
        check_finite(part, model.config.dtype, f"layer {layer}, expert {expert}: {name}")
    return backend.pack_expert(*parts, mode)


def load_gate(model: Model, layer: int, backend: Backend) -> PackedLinear:
    """As stored, whatever the mode: a gate is never rounded (docs/numerics.md)."""
    if isinstance(model, Pack):
        return model.gate(layer, backend)
    gate = model.gate(layer)
    check_finite(gate, model.config.dtype, f"layer {layer}: gate")
    return backend.pack_linear(gate, ComputeMode.FP32)
