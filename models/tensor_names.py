"""Names and shapes of a Mixtral checkpoint's tensors in the two layouts in use.

transformers, 4 and 5 alike, writes `block_sparse_moe.experts.N.w1/w2/w3`; 5 holds `mlp.experts.gate_up_proj`
(gate rows first) and `mlp.experts.down_proj` in memory, and reads and some tools write that too.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import prod

from colibri.errors import CheckpointError
from colibri.models.config import MixtralConfig
from colibri.models.safetensors_writer import TensorSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


class ExpertLayout(enum.Enum):
    """How a checkpoint stores its experts: one tensor per matrix, or 3-D tensors with all experts of a layer."""

    PER_EXPERT = "block_sparse_moe.experts.N.w1/w2/w3"
    FUSED = "mlp.experts.gate_up_proj/down_proj"


@dataclass(frozen=True, slots=True)
class Part:
    """A matrix inside a stored tensor: its elements `[first, first + size)`, row-major, in the given shape."""

    tensor: str
    shape: tuple[int, ...]
    first: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def label(self, whole: tuple[int, ...]) -> str:
        """Returns the tensor's name, and which of its elements, unless the part is the whole tensor. whole: the
        tensor's shape.
        """
        if self.size == prod(whole):
            return self.tensor
        return f"{self.tensor}[{self.first}:{self.first + self.size}]"


def detect_layout(names: Collection[str], where: object) -> ExpertLayout:
    """The layout that tensor names of layer 0 show.

    where: the checkpoint's folder.
    Raises CheckpointError if there is neither.
    """
    for layout in ExpertLayout:
        if _expert_tensor(layout, 0, 0, "gate") in names:
            return layout
    known = "; ".join(layout.value for layout in ExpertLayout)
    raise CheckpointError.of(where, "experts of layer 0", f"tensors named as one of: {known}", "neither")


def layer_prefix(layer: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"model.layers.{layer}."


def gate_name(layout: ExpertLayout, layer: int) -> str:
    """Name of the router's weight `[experts, hidden]`."""
    block = "block_sparse_moe" if layout is ExpertLayout.PER_EXPERT else "mlp"
    return f"{layer_prefix(layer)}{block}.gate.weight"


def expert_parts(
    config: MixtralConfig, layout: ExpertLayout, layer: int, expert: int
) -> tuple[Part, Part, Part]:
    """Returns where the expert's gate `[ffn, hidden]`, up `[ffn, hidden]` and down `[hidden, ffn]` matrices lie."""
    wide, narrow = (config.ffn, config.hidden), (config.hidden, config.ffn)
    gate, up, down = (_expert_tensor(layout, layer, expert, role) for role in ("gate", "up", "down"))
    if layout is not ExpertLayout.FUSED:
        return Part(gate, wide), Part(up, wide), Part(down, narrow)
    size = config.ffn * config.hidden
    return (
        Part(gate, wide, 2 * expert * size),
        Part(up, wide, (2 * expert + 1) * size),
        Part(down, narrow, expert * size),
    )


def count_model_tensors(config: MixtralConfig, layout: ExpertLayout) -> int:
    """Counts `model_tensors` without listing them: a configuration may claim any number."""
    experts = 2 if layout is ExpertLayout.FUSED else 3 * config.experts
    return config.layers * (7 + experts) + (2 if config.tied else 3)


def model_tensors(config: MixtralConfig, layout: ExpertLayout) -> Iterator[TensorSpec]:
    """Yields every tensor that the checkpoint must hold, in the order of the computation."""

    def spec(name: str, *shape: int) -> TensorSpec:
        return TensorSpec(name, config.dtype, shape)

    h, q, kv = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield spec(EMBEDDING, config.vocab, h)
    for layer in range(config.layers):
        p = layer_prefix(layer)
        yield spec(p + "input_layernorm.weight", h)
        yield spec(p + "self_attn.q_proj.weight", q, h)
        yield spec(p + "self_attn.k_proj.weight", kv, h)
        yield spec(p + "self_attn.v_proj.weight", kv, h)
        yield spec(p + "self_attn.o_proj.weight", h, q)
        yield spec(p + "post_attention_layernorm.weight", h)
        yield spec(gate_name(layout, layer), config.experts, h)
        if layout is ExpertLayout.FUSED:
            yield spec(_expert_tensor(layout, layer, 0, "gate"), config.experts, 2 * config.ffn, h)
            yield spec(_expert_tensor(layout, layer, 0, "down"), config.experts, h, config.ffn)
        else:
            for expert in range(config.experts):
                gate, up, down = expert_parts(config, layout, layer, expert)
                for part in (gate, down, up):
                    yield spec(part.tensor, *part.shape)
    yield spec(FINAL_NORM, h)
    if not config.tied:
        yield spec(LM_HEAD, config.vocab, h)


def _expert_tensor(layout: ExpertLayout, layer: int, expert: int, role: str) -> str:
    """Name of the tensor that holds the expert's matrix `role` ('gate', 'up', 'down')."""
    p = layer_prefix(layer)
    if layout is ExpertLayout.PER_EXPERT:
        matrix = {"gate": "w1", "up": "w3", "down": "w2"}[role]
        return f"{p}block_sparse_moe.experts.{expert}.{matrix}.weight"
    return f"{p}mlp.experts.{'down_proj' if role == 'down' else 'gate_up_proj'}"
