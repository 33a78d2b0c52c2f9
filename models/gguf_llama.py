"""Read a llama-architecture GGUF as Hugging Face tensors: names mapped, weights dequantised, rows of q and k
put back.

Uses the `gguf` package for the container and the block formats. Its dequantisation is element-wise fp32 (one
product, one sum), which IEEE 754 makes equal on every machine. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from colibri.errors import CheckpointError

_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_OUTER_NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
_MAX_STRINGS = 1 << 20


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes and constants of a dense llama model; `context` in tokens."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope_theta: float
    rms_eps: float


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokenizer as a GGUF holds it. `token_types`: 1 normal, 3 control; a merge is 'left right'."""

    model: str
    pre: str
    tokens: tuple[str, ...]
    token_types: tuple[int, ...]
    merges: tuple[str, ...]
    bos: int
    eos: int
    unknown: int
    padding: int
    add_bos: bool
    chat_template: str


class GgufLlama:
    """One open GGUF file of architecture `llama` with tied embeddings; tensors are dequantised when asked
    for.

    Raises CheckpointError for an unreadable file, another architecture, or a missing key or tensor.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise CheckpointError(f"{path}: not a readable GGUF file: {error}") from error
        architecture = self.value("general.architecture")
        if architecture != "llama":
            raise CheckpointError(f"{path}: general.architecture: expected llama, got {architecture!r}")
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        if "output.weight" in self._tensors:
            raise CheckpointError(f"{path}: output.weight: expected tied embeddings, got a head of its own")
        for key in self._reader.fields:
            if key.startswith("llama.rope.scaling"):
                raise CheckpointError(f"{path}: {key}: expected no RoPE scaling, got {self.value(key)!r}")
        heads, hidden = (
            int(self.value("llama.attention.head_count")),
            int(self.value("llama.embedding_length")),
        )
        self.shape = LlamaShape(
            layers=int(self.value("llama.block_count")),
            hidden=hidden,
            ffn=int(self.value("llama.feed_forward_length")),
            heads=heads,
            kv_heads=int(self.value("llama.attention.head_count_kv")),
            head_dim=int(self.value("llama.rope.dimension_count")),
            vocab=int(self.value("llama.vocab_size")),
            context=int(self.value("llama.context_length")),
            rope_theta=_shortest(self.value("llama.rope.freq_base")),
            rms_eps=_shortest(self.value("llama.attention.layer_norm_rms_epsilon")),
        )
        if self.shape.head_dim * heads != hidden:
            raise CheckpointError(
                f"{path}: llama.rope.dimension_count: expected {hidden} / {heads} (RoPE over whole heads), "
                f"got {self.shape.head_dim}"
            )

    def value(self, key: str) -> Any:
        """The value of a metadata key."""
        field = self._reader.get_field(key)
        if field is None or len(field.data) > _MAX_STRINGS:
            raise CheckpointError(f"{self._path}: metadata key {key} is missing or too long")
        return field.contents()

    def vocabulary(self) -> GgufVocabulary:
        """Tokens, merges, special ids and the chat template."""
        key = "tokenizer.ggml."
        return GgufVocabulary(
            model=str(self.value(key + "model")),
            pre=str(self.value(key + "pre")),
            tokens=tuple(self.value(key + "tokens")),
            token_types=tuple(self.value(key + "token_type")),
            merges=tuple(self.value(key + "merges")),
            bos=int(self.value(key + "bos_token_id")),
            eos=int(self.value(key + "eos_token_id")),
            unknown=int(self.value(key + "unknown_token_id")),
            padding=int(self.value(key + "padding_token_id")),
            add_bos=bool(self.value(key + "add_bos_token")),
            chat_template=str(self.value("tokenizer.chat_template")),
        )

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor that Hugging Face's LlamaForCausalLM calls `name`, fp32, in its shape there."""
        stored = _OUTER_NAMES.get(name)
        if stored is None:
            _, _, layer, rest = name.split(".", 3)
            stored = f"blk.{layer}.{_LAYER_NAMES[rest]}"
        tensor = self._tensors.get(stored)
        if tensor is None:
            raise CheckpointError(f"{self._path}: tensor {stored} is missing")
        values = np.ascontiguousarray(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        expected = tuple(int(size) for size in reversed(tensor.shape))
        if values.shape != expected:
            raise CheckpointError(f"{self._path}: {stored}: expected shape {expected}, got {values.shape}")
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            return half_split_rows(values, self.shape.head_dim)
        return values


def half_split_rows(values: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """Undo llama.cpp's row order of q and k, `[heads * head_dim, hidden]` in and out.

    Its converter interleaves the two halves of each head, so that RoPE turns neighbours (2i, 2i + 1); Hugging
    Face turns (i, i + head_dim / 2).
    """
    rows, columns = values.shape
    pairs = values.reshape(rows // head_dim, head_dim // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _shortest(value: float) -> float:
    """The shortest decimal that is this fp32 value: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))
