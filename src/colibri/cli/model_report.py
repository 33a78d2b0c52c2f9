"""What `inspect` tells of a checkpoint's weights: sizes by arithmetic over its configuration, nothing but headers
is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from colibri.kernels.api import ComputeMode
from colibri.models.checkpoint import Checkpoint
from colibri.models.dtypes import BF16, BY_NAME
from colibri.models.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, ExpertLayout, model_tensors
from colibri.numerics import EngineNumerics, ExpertNumerics
from colibri.placement import spread

#: Parts of a model in the order of the computation.
PARTS = ("embedding", "attention", "norms", "gates", "experts", "head")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """What one worker holds under the default placement. nbytes: as stored; loaded_nbytes: compute mode -> as it
    lies in memory."""

    name: str
    experts: int
    nbytes: int
    loaded_nbytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors that differ in their numbers only. name: with `*` for each number; shape: of each."""

    name: str
    shape: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Numerics:
    """The ids of a compute mode, as handshakes and receipts have them, on the `cpu` backend."""

    expert_numerics_id: str
    engine_numerics_id: str


@dataclass(frozen=True, slots=True)
class ModelReport:
    """parameters, nbytes: by part; a tied head has none of its own. active_parameters: those that one token's
    computation reads, embedding table left out. kv_bytes_per_token, loaded_nbytes (weights of all processes, each
    expert once), numerics: by compute mode. compute_mode: the one taken where nobody asks for another."""

    parameters: Mapping[str, int]
    nbytes: Mapping[str, int]
    active_parameters: int
    expert_nbytes: int
    kv_bytes_per_token: Mapping[str, int]
    loaded_nbytes: Mapping[str, int]
    compute_mode: str
    numerics: Mapping[str, Numerics]
    tensors: tuple[TensorGroup, ...]
    workers: tuple[WorkerShare, ...]


def report(checkpoint: Checkpoint, workers: int, replicas: int = 1) -> ModelReport:
    """Raises InvalidInput for numbers of workers or replicas out of range."""
    config = checkpoint.config
    parameters = dict.fromkeys(PARTS, 0)
    for spec in model_tensors(config, ExpertLayout.FUSED):
        parameters[_part(spec.name)] += prod(spec.shape)
    itemsize = BY_NAME[config.dtype].itemsize
    loaded = {mode.value: BY_NAME[_weight_format(mode, config.dtype)].itemsize for mode in ComputeMode}
    head = config.vocab * config.hidden
    dense = sum(parameters[part] for part in ("attention", "norms", "gates"))
    cached = 2 * config.layers * config.kv_heads * config.head_dim
    names = tuple(f"w{index}" for index in range(workers))
    placement = spread(config.layers, config.experts, names, replicas) if names else None
    shares = []
    for index, name in enumerate(names):
        held = len(placement.experts_of(index)) if placement else 0
        in_memory = {mode: held * config.expert_parameters * width for mode, width in loaded.items()}
        shares.append(WorkerShare(name, held, held * checkpoint.expert_nbytes, in_memory))
    return ModelReport(
        parameters=parameters,
        nbytes={part: count * itemsize for part, count in parameters.items()},
        active_parameters=dense + head + config.layers * config.top_k * config.expert_parameters,
        expert_nbytes=checkpoint.expert_nbytes,
        kv_bytes_per_token={"fp32": 4 * cached, "bf16": 2 * cached},
        loaded_nbytes={mode: sum(parameters.values()) * width for mode, width in loaded.items()},
        compute_mode=(ComputeMode.BF16 if config.dtype == BF16.name else ComputeMode.FP32).value,
        numerics={mode.value: _numerics(mode, config.dtype) for mode in ComputeMode},
        tensors=_groups(checkpoint),
        workers=tuple(shares),
    )


def _weight_format(mode: ComputeMode, stored: str) -> str:
    return ExpertNumerics.of("cpu", mode.value, stored).weight_format


def _numerics(mode: ComputeMode, stored: str) -> Numerics:
    expert = ExpertNumerics.of("cpu", mode.value, stored)
    engine = EngineNumerics(expert, dense_dtype=expert.weight_format, cache_dtype=mode.value)
    return Numerics(expert.id, engine.id)


def _groups(checkpoint: Checkpoint) -> tuple[TensorGroup, ...]:
    counts: dict[tuple[str, tuple[int, ...]], int] = {}
    for spec in model_tensors(checkpoint.config, checkpoint.layout):
        key = (_NUMBER.sub("*", spec.name), spec.shape)
        counts[key] = counts.get(key, 0) + 1
    return tuple(TensorGroup(name, shape, count) for (name, shape), count in counts.items())


def _part(name: str) -> str:
    if name == EMBEDDING:
        return "embedding"
    if name == LM_HEAD:
        return "head"
    if name == FINAL_NORM or "layernorm" in name:
        return "norms"
    if "self_attn" in name:
        return "attention"
    return "gates" if ".gate." in name else "experts"
