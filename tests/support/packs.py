"""Packs of small models, made as the verb makes them."""

from __future__ import annotations

from pathlib import Path

from colibri.models.checkpoint import Checkpoint
from colibri.models.packs.build import build_pack
from colibri.models.packs.pack import Pack
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.models.weight_format import WeightFormat


def pack(model: Path, out: Path, experts: str, dense: str = "bf16", threads: int = 2) -> Pack:
    """Formats as numerics ids spell them: 'bf16', 'int4g64'."""
    build_pack(Checkpoint.open(model), out, as_format(experts), as_format(dense), threads=threads)
    return Pack.open(out)


def as_format(name: str) -> WeightFormat:
    dtype, _, group = name.partition("g")
    return WeightFormat(dtype, int(group or 0))


def small_mixtral(folder: Path, dtype: str) -> Path:
    """Makes `folder`: a checkpoint of 2 layers and 4 experts, no size of which is a multiple of a group of scales."""
    return random_mixtral(
        folder,
        RandomMixtral(
            hidden=48,
            ffn=56,
            layers=2,
            experts=4,
            top_k=2,
            heads=4,
            kv_heads=2,
            vocab=400,
            max_positions=256,
            seed=2,
            dtype=dtype,
        ),
    )
