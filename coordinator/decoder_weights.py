"""The dense part of a model in the packed layout: everything but gates and experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from colibri.kernels.api import F32, Backend, ComputeMode, PackedLinear, RopeTable
from colibri.models.checkpoint import Array, Checkpoint
from colibri.models.config import MixtralConfig
from colibri.models.dtypes import fp32_from_stored
from colibri.models.finite import check_finite

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all)"""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Norms fp32 [hidden]; qkv: rows of q, k and v one after another, one product for all three; o_proj
    [hidden, heads * head_dim].
    """

    attention_norm: F32
    qkv: PackedLinear
    o_proj: PackedLinear
    ffn_norm: F32


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """embedding, head [vocab, hidden]: one and the same matrix when the checkpoint ties them; final_norm
    fp32 [hidden].
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
        checkpoint: Checkpoint,
        backend: Backend,
        mode: ComputeMode,
        progress: Progress | None = None,
        *,
        max_positions: int | None = None,
    ) -> DecoderWeights:
        """Reads and packs the dense tensors. max_positions: rows of the RoPE table (None: the model's
        context).

        In bf16 mode weights of other dtypes are rounded to bf16. Raises CheckpointError for unreadable
        tensors and for
        weights that are not finite.
        """
        config = checkpoint.config
        done, total = 0, _dense_bytes(checkpoint)

        def read(array: Array, where: str) -> Array:
            nonlocal done
            check_finite(array, config.dtype, where)
            done += array.nbytes
            if progress is not None:
                progress(done, total)
            return array

        def norm(array: Array, where: str) -> F32:
            return fp32_from_stored(read(array, where), config.dtype)

        embedding = backend.pack_linear(read(checkpoint.embedding(), "embedding"), mode)
        layers = []
        for layer in range(config.layers):
            norms, attention = checkpoint.norms(layer), checkpoint.attention(layer)
            at = f"layer {layer}"
            qkv = np.concatenate([read(getattr(attention, name), f"{at}: {name}_proj") for name in "qkv"])
            layers.append(
                LayerWeights(
                    attention_norm=norm(norms.input, f"{at}: input_layernorm"),
                    qkv=backend.pack_linear(qkv, mode),
                    o_proj=backend.pack_linear(read(attention.o, f"{at}: o_proj"), mode),
                    ffn_norm=norm(norms.post, f"{at}: post_attention_layernorm"),
                )
            )
        return cls(
            config=config,
            mode=mode,
            embedding=embedding,
            layers=tuple(layers),
            final_norm=norm(checkpoint.final_norm(), "final norm"),
            head=embedding
            if config.tied
            else backend.pack_linear(read(checkpoint.lm_head(), "lm_head"), mode),
            rope=backend.rope_table(
                config.rope_theta, config.head_dim, max_positions or config.max_positions
            ),
        )


def _dense_bytes(checkpoint: Checkpoint) -> int:
    config = checkpoint.config
    arrays = [checkpoint.embedding(), checkpoint.final_norm()]
    if not config.tied:
        arrays.append(checkpoint.lm_head())
    for layer in range(config.layers):
        norms, attention = checkpoint.norms(layer), checkpoint.attention(layer)
        arrays += [norms.input, norms.post, attention.q, attention.k, attention.v, attention.o]
    return sum(array.nbytes for array in arrays)
