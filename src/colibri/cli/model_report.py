"""What `inspect` tells of a model's weights: sizes by arithmetic over its configuration, nothing but headers
is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from colibri.errors import ConfigError
from colibri.kernels.api import ComputeMode
from colibri.models.checkpoint import Checkpoint
from colibri.models.dtypes import BY_NAME
from colibri.models.model import Model, check_mode, default_mode, engine_numerics, formats
from colibri.models.packs.pack import Pack
from colibri.models.packs.plan import plan_files
from colibri.models.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, ExpertLayout, model_tensors
from colibri.placement import spread

#: Parts of a model in the order of the computation.
PARTS = ("embedding", "attention", "norms", "gates", "experts", "head")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


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
    expert once), numerics: by compute mode, of those that it serves. compute_mode: the one taken where nobody asks for
    another."""

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


def report(model: Model, workers: int, replicas: int = 1) -> ModelReport:
    """Raises InvalidInput for numbers of workers or replicas out of range."""
    config = model.config
    parameters = dict.fromkeys(PARTS, 0)
    for spec in model_tensors(config, ExpertLayout.FUSED):
        parameters[_part(spec.name)] += prod(spec.shape)
    modes = [mode for mode in ComputeMode if _serves(model, mode)]
    head = config.vocab * config.hidden
    dense = sum(parameters[part] for part in ("attention", "norms", "gates"))
    cached = 2 * config.layers * config.kv_heads * config.head_dim
    names = tuple(f"w{index}" for index in range(workers))
    placement = spread(config.layers, config.experts, names, replicas) if names else None
    shares = []
    for index, name in enumerate(names):
        held = len(placement.experts_of(index)) if placement else 0
        in_memory = {mode.value: held * _expert_in_memory(model, mode) for mode in modes}
        shares.append(WorkerShare(name, held, held * model.expert_nbytes, in_memory))
    return ModelReport(
        parameters=parameters,
        nbytes=_stored(model, parameters),
        active_parameters=dense + head + config.layers * config.top_k * config.expert_parameters,
        expert_nbytes=model.expert_nbytes,
        kv_bytes_per_token={"fp32": 4 * cached, "bf16": 2 * cached},
        loaded_nbytes={mode.value: _in_memory(model, mode, sum(parameters.values())) for mode in modes},
        compute_mode=default_mode(model).value,
        numerics={mode.value: _numerics(model, mode) for mode in modes},
        tensors=_groups(model),
        workers=tuple(shares),
    )


def _serves(model: Model, mode: ComputeMode) -> bool:
    try:
        check_mode(model, mode)
    except ConfigError:
        return False
    return True


def _stored(model: Model, parameters: Mapping[str, int]) -> dict[str, int]:
    if isinstance(model, Checkpoint):
        itemsize = BY_NAME[model.config.dtype].itemsize
        return {part: count * itemsize for part, count in parameters.items()}
    found = dict.fromkeys(PARTS, 0)
    for file in plan_files(model.config, model.manifest.experts, model.manifest.dense):
        for blob in file.blobs:
            found[_blob_part(blob.name)] += blob.nbytes
    return found


def _in_memory(model: Model, mode: ComputeMode, parameters: int) -> int:
    """A checkpoint's weights as they will be packed, without padding."""
    if isinstance(model, Pack):
        return model.nbytes
    return parameters * BY_NAME[formats(model, mode)[0].dtype].itemsize


def _expert_in_memory(model: Model, mode: ComputeMode) -> int:
    return (
        model.expert_nbytes
        if isinstance(model, Pack)
        else _in_memory(model, mode, model.config.expert_parameters)
    )


def _numerics(model: Model, mode: ComputeMode) -> Numerics:
    engine = engine_numerics(model, "cpu", mode)
    return Numerics(engine.expert.id, engine.id)


def _groups(model: Model) -> tuple[TensorGroup, ...]:
    counts: dict[tuple[str, tuple[int, ...]], int] = {}
    for name, shape in _tensors(model):
        key = (_NUMBER.sub("*", name), shape)
        counts[key] = counts.get(key, 0) + 1
    return tuple(TensorGroup(name, shape, count) for (name, shape), count in counts.items())


def _tensors(model: Model) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Of a pack: its blobs, with their bytes for a shape."""
    if isinstance(model, Checkpoint):
        for spec in model_tensors(model.config, model.layout):
            yield spec.name, spec.shape
        return
    for file in plan_files(model.config, model.manifest.experts, model.manifest.dense):
        for blob in file.blobs:
            yield blob.name, (blob.nbytes,)


def _blob_part(name: str) -> str:
    last = name.rpartition(".")[2]
    named = {
        "embedding": "embedding",
        "head": "head",
        "gate": "gates",
        "qkv": "attention",
        "o_proj": "attention",
    }
    return named.get(last, "norms" if "norm" in last else "experts")


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
