"""Open a model from disk, a Hugging Face folder or a pack, and say what it computes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from colibri.errors import CheckpointError, ConfigError
from colibri.kernels.api import Backend, ComputeMode, PackedExpert, PackedLinear
from colibri.kernels.layout.packing import packed_expert_bytes
from colibri.models.checked import (
    CheckedCheckpoint,
    check_answer_texts,
    checked,
    warn_of_answer_texts,
)
from colibri.models.checkpoint import Checkpoint
from colibri.models.home import colibri_home
from colibri.models.location import split_pin
from colibri.models.packs.fetched import open_fetched
from colibri.models.packs.pack import Pack, is_pack
from colibri.models.packs.remote_folder import is_url
from colibri.models.weight_format import WeightFormat
from colibri.numerics import EngineNumerics, ExpertNumerics

Model = Checkpoint | Pack


def open_model(place: str | Path, home: Path | None = None) -> Model:
    """A folder, or a URL of a pack, whose weights are then fetched when they are wanted and kept under `home` (default:
    Colibri's); behind it `#sha256=` and the digest that its pack.json must have. Raises CheckpointError as
    Checkpoint.open and Pack.open do, ConfigError for a pin that is none or of no pack, and what open_fetched raises."""
    path, pin = split_pin(place)
    if isinstance(path, str) and is_url(path):
        return open_fetched(path, colibri_home(os.environ) if home is None else home, pin)
    if is_pack(Path(path)):
        return Pack.open(path, pin)
    if pin and Path(path).is_dir():
        raise ConfigError("MODEL", "a pack, whose pack.json #sha256= pins", "a folder without pack.json")
    return Checkpoint.open(path)


def open_checkpoint(path: str | Path, wanted_by: str) -> Checkpoint:
    """Opens a checkpoint for work that needs the original weights. Raises CheckpointError, also for a pack."""
    path = split_pin(path)[0]
    if is_pack(Path(path)):
        raise CheckpointError.of(path, "", f"a checkpoint, which {wanted_by} needs", "a pack")
    return Checkpoint.open(path)


def for_use(model: Model) -> Model:
    """Returns the model with weights that are checked as they are read; a pack's always are."""
    return model if isinstance(model, Pack) else checked(model)


def confirm_texts(model: Model) -> None:
    """Checks tokenizer, chat template and configuration. Call it after reading them, if you use them. Raises
    CheckpointError.
    """
    if isinstance(model, Pack):
        model.check_texts()
    else:
        check_answer_texts(model)


def content_digest(model: Model, experts: Mapping[tuple[int, int], bytes]) -> str:
    """Returns one digest of all weights; empty if some experts are missing.

    experts: (layer, expert) -> digest as it was loaded.
    """
    return (model if isinstance(model, Pack) else checked(model)).content_digest(experts)


def noted_experts(model: Model) -> tuple[dict[tuple[int, int], bytes], str]:
    """Returns (layer, expert) -> digest of its content, as far as known before it is loaded; and who noted them, for
    errors.
    """
    if isinstance(model, Pack):
        return model.noted_experts(), "as pack.json says"
    return checked(model).noted_experts(), "as first loaded on the coordinator's host"


def warn_of_texts(model: Model) -> None:
    """Logs changes of a checkpoint's tokenizer and template, in a process that does not use them."""
    if not isinstance(model, Pack):
        warn_of_answer_texts(model)


def default_mode(model: Model) -> ComputeMode:
    """Returns bf16 if that rounds no weights, else fp32."""
    formats = (
        (model.manifest.experts, model.manifest.dense)
        if isinstance(model, Pack)
        else (WeightFormat(model.config.dtype),)
    )
    return ComputeMode.BF16 if all(kind.takes_bf16_rows for kind in formats) else ComputeMode.FP32


def check_mode(model: Model, mode: ComputeMode) -> None:
    """Raises ConfigError if a pack cannot be used in the mode. A checkpoint always can: it is rounded for bf16 mode."""
    if not isinstance(model, Pack) or mode is ComputeMode.FP32:
        return
    manifest = model.manifest
    for flag, kind in (("--dtype", manifest.experts), ("--dense-dtype", manifest.dense)):
        if not kind.takes_bf16_rows:
            expected = f"fp32 with this pack, whose {flag} is {kind.name} (or make one with {flag} bf16)"
            raise ConfigError("--compute-mode", expected, mode.value)


def formats(model: Model, mode: ComputeMode) -> tuple[WeightFormat, WeightFormat]:
    """Returns the formats of experts and dense matrices in memory in that mode."""
    if isinstance(model, Pack):
        return model.manifest.experts, model.manifest.dense
    plain = WeightFormat("bf16" if mode is ComputeMode.BF16 else model.config.dtype)
    return plain, plain


def expert_bytes(model: Model, mode: ComputeMode) -> int:
    """Returns the bytes of one expert in memory."""
    kind = formats(model, mode)[0]
    return packed_expert_bytes(kind.dtype, model.config.hidden, model.config.ffn, kind.group)


def expert_numerics(model: Model, backend: str, mode: ComputeMode, family: str = "any") -> ExpertNumerics:
    """Returns what the model's experts compute on a backend. family: the instruction family, for CUDA."""
    kind = formats(model, mode)[0]
    if kind.quantised:
        return ExpertNumerics.of_quantised(backend, mode.value, kind.dtype, kind.group, family)
    return ExpertNumerics.of(backend, mode.value, kind.dtype, family)


def engine_numerics(
    model: Model, backend: str, mode: ComputeMode, gate_precision: str = "fp32", family: str = "any"
) -> EngineNumerics:
    """Returns what the model's whole answers are computed with. backend, family: of the experts."""
    dense = formats(model, mode)[1]
    return EngineNumerics(
        expert_numerics(model, backend, mode, family), dense.name, mode.value, gate_precision
    )


def load_expert(model: Model, layer: int, expert: int, backend: Backend, mode: ComputeMode) -> PackedExpert:
    """Reads an expert from a pack, or reads and packs one from a checkpoint.

    Raises CheckpointError, also for weights that are not finite.
    """
    if isinstance(model, Pack):
        return model.expert(layer, expert, backend)
    weights = checked(model).expert(layer, expert)
    return backend.pack_expert(weights.gate, weights.up, weights.down, mode)


def load_gate(model: Model, layer: int, backend: Backend) -> PackedLinear:
    """Reads a gate as stored, whatever the mode: a gate is never rounded (docs/numerics.md)."""
    if isinstance(model, Pack):
        return model.gate(layer, backend)
    return backend.pack_linear(checked(model).gate(layer), ComputeMode.FP32)


def load_gates(model: Model, backend: Backend) -> list[PackedLinear]:
    """Reads the gates of all layers."""
    usable = for_use(model)
    gates = [load_gate(usable, layer, backend) for layer in range(model.config.layers)]
    if isinstance(usable, CheckedCheckpoint):
        usable.save()
    return gates
