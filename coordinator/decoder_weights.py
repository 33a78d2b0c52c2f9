"""The dense part of a model in the packed layout: everything except gates and experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from colibri.kernels.api import F32, Backend, ComputeMode, PackedLinear, RopeTable
from colibri.models.checked import checked
from colibri.models.checkpoint import Array, Checkpoint
from colibri.models.config import MixtralConfig
from colibri.models.dtypes import fp32_from_stored
from colibri.models.packs.pack import Pack
from colibri.models.packs.plan import EMBEDDING, FINAL_NORM, HEAD, part_name
from colibri.models.tensor_names import ExpertLayout, model_tensors

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all)"""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The dense weights of one layer.

    norms: fp32 [hidden].
    qkv: rows of q, k and v, one after another: one product for all three.
    o_proj: [hidden, heads * head_dim].
    """

    attention_norm: F32
    qkv: PackedLinear
    o_proj: PackedLinear
    ffn_norm: F32


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """The dense weights of a model.

    embedding, head: [vocab, hidden]; the same matrix if the checkpoint ties them.
    final_norm: fp32 [hidden].
    """

    config: MixtralConfig
    mode: ComputeMode
    embedding: PackedLinear
    layers: tuple[LayerWeights, ...]
    final_norm: F32
    head: PackedLinear
    rope: RopeTable

    @classmethod
    def load(
        cls,
        model: Checkpoint | Pack,
        backend: Backend,
        mode: ComputeMode,
        progress: Progress | None = None,
        *,
        max_positions: int | None = None,
    ) -> DecoderWeights:
        """Reads the dense tensors; packs those of a checkpoint. In bf16 mode weights of other dtypes are rounded to
        bf16.

        max_positions: rows of the RoPE table; None: the model's context.

        Raises CheckpointError for tensors that are unreadable, not finite or changed, and for wrong checksums of a
        pack.
        """
        if isinstance(model, Pack):
            return cls._from_pack(model, backend, mode, progress, max_positions)
        checkpoint, config = checked(model), model.config
        done, total = 0, _dense_bytes(config)

        def read(array: Array) -> Array:
            nonlocal done
            done += array.nbytes
            if progress is not None:
                progress(done, total)
            return array

        def norm(array: Array) -> F32:
            return fp32_from_stored(read(array), config.dtype)

        embedding = backend.pack_linear(read(checkpoint.embedding()), mode)
        layers = []
        for layer in range(config.layers):
            norms, attention = checkpoint.norms(layer), checkpoint.attention(layer)
            qkv = np.concatenate([read(getattr(attention, name)) for name in "qkv"])
            layers.append(
                LayerWeights(
                    attention_norm=norm(norms.input),
                    qkv=backend.pack_linear(qkv, mode),
                    o_proj=backend.pack_linear(read(attention.o), mode),
                    ffn_norm=norm(norms.post),
                )
            )
        final_norm = norm(checkpoint.final_norm())
        head = embedding if config.tied else backend.pack_linear(read(checkpoint.lm_head()), mode)
        checkpoint.save()
        return cls(
            config=config,
            mode=mode,
            embedding=embedding,
            layers=tuple(layers),
            final_norm=final_norm,
            head=head,
            rope=backend.rope_table(
                config.rope_theta, config.head_dim, max_positions or config.max_positions
            ),
        )

    @classmethod
    def _from_pack(
        cls,
        pack: Pack,
        backend: Backend,
        mode: ComputeMode,
        progress: Progress | None,
        max_positions: int | None,
    ) -> DecoderWeights:
        config = pack.config
        done, total = 0, pack.dense_nbytes

        def told(array: Array) -> None:
            nonlocal done
            done += array.nbytes
            if progress is not None:
                progress(done, total)

        def matrix(name: str) -> PackedLinear:
            packed = pack.matrix(name, backend)
            told(packed.data)
            return packed

        def norm(name: str) -> F32:
            weight = pack.vector(name, backend)
            told(weight)
            return weight

        embedding = matrix(EMBEDDING)
        return cls(
            config=config,
            mode=mode,
            embedding=embedding,
            layers=tuple(
                LayerWeights(
                    attention_norm=norm(part_name(layer, "attention_norm")),
                    qkv=matrix(part_name(layer, "qkv")),
                    o_proj=matrix(part_name(layer, "o_proj")),
                    ffn_norm=norm(part_name(layer, "ffn_norm")),
                )
                for layer in range(config.layers)
            ),
            final_norm=norm(FINAL_NORM),
            head=embedding if config.tied else matrix(HEAD),
            rope=backend.rope_table(
                config.rope_theta, config.head_dim, max_positions or config.max_positions
            ),
        )


def _dense_bytes(config: MixtralConfig) -> int:
    """Returns the bytes of all tensors except gates and experts, as a checkpoint stores them."""
    layout = ExpertLayout.PER_EXPERT
    return sum(spec.nbytes for spec in model_tensors(config, layout) if "block_sparse_moe" not in spec.name)
