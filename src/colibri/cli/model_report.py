"""What `inspect` tells of a checkpoint: sizes by arithmetic over its configuration, nothing but headers is
read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from colibri.models.checkpoint import Checkpoint
from colibri.models.dtypes import BY_NAME
from colibri.models.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, ExpertLayout, model_tensors
from colibri.placement import spread

#: Parts of a model in the order of the computation.
PARTS = ("embedding", "attention", "norms", "gates", "experts", "head")


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """What one worker holds under the default placement."""

    name: str
    experts: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ModelReport:
    """parameters, nbytes: by part; a tied head has none of its own. active_parameters: those that one token's
    computation reads, embedding table left out. kv_bytes_per_token: by compute mode."""

    parameters: Mapping[str, int]
    nbytes: Mapping[str, int]
    active_parameters: int
    expert_nbytes: int
    kv_bytes_per_token: Mapping[str, int]
    workers: tuple[WorkerShare, ...]


def report(checkpoint: Checkpoint, workers: int) -> ModelReport:
    """Raises InvalidInput for a number of workers out of range."""
    config = checkpoint.config
    parameters = dict.fromkeys(PARTS, 0)
    for spec in model_tensors(config, ExpertLayout.FUSED):
        parameters[_part(spec.name)] += prod(spec.shape)
    itemsize = BY_NAME[config.dtype].itemsize
    head = config.vocab * config.hidden
    dense = sum(parameters[part] for part in ("attention", "norms", "gates"))
    cached = 2 * config.layers * config.kv_heads * config.head_dim
    names = tuple(f"w{index}" for index in range(workers))
    placement = spread(config.layers, config.experts, names) if names else None
    shares = []
    for index, name in enumerate(names):
        held = len(placement.experts_of(index)) if placement else 0
        shares.append(WorkerShare(name, held, held * checkpoint.expert_nbytes))
    return ModelReport(
        parameters=parameters,
        nbytes={part: count * itemsize for part, count in parameters.items()},
        active_parameters=dense + head + config.layers * config.top_k * config.expert_parameters,
        expert_nbytes=checkpoint.expert_nbytes,
        kv_bytes_per_token={"fp32": 4 * cached, "bf16": 2 * cached},
        workers=tuple(shares),
    )


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
