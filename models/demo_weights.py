"""The demo model's tensors: what each is called and how it is made from the dense GGUF. Pure and bit-equal
everywhere.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colibri.errors import CheckpointError
from colibri.models.config import parse_config
from colibri.models.dtypes import bf16_from_fp32
from colibri.models.gate_rows import GATE_ROWS, GATE_TENSOR
from colibri.models.gguf_llama import GgufLlama, GgufVocabulary, LlamaShape
from colibri.models.safetensors_file import SafetensorsFile
from colibri.models.safetensors_writer import TensorSpec
from colibri.models.tensor_names import ExpertLayout, model_tensors
from colibri.models.upcycle import noise_scale, perturbed

EXPERTS = 8
TOP_K = 2
SEED = 20241031
NOISE_PERCENT = 3
DIGESTS = Path(__file__).parent / "data" / "smollm2_moe_tensors.json"

_DENSE = {"w1": "mlp.gate_proj.weight", "w2": "mlp.down_proj.weight", "w3": "mlp.up_proj.weight"}


def demo_config(shape: LlamaShape, vocabulary: GgufVocabulary) -> dict[str, object]:
    """config.json of the demo model."""
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.rms_eps,
        "rope_theta": shape.rope_theta,
        "sliding_window": None,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "tie_word_embeddings": True,
        "attention_dropout": 0.0,
        "bos_token_id": vocabulary.bos,
        "eos_token_id": vocabulary.eos,
        "pad_token_id": vocabulary.padding,
        "dtype": "bfloat16",
    }


def demo_specs(config: dict[str, object]) -> list[TensorSpec]:
    """Every tensor of the demo model, in file order, with the names that Mixtral checkpoints have on disk."""
    return list(model_tensors(parse_config(config), ExpertLayout.PER_EXPERT))


class DemoWeights:
    """Makes any tensor of `demo_specs`; keeps the three dense FFN matrices of one layer between calls."""

    def __init__(self, source: GgufLlama) -> None:
        self._source = source
        self._gates = SafetensorsFile(GATE_ROWS).array(GATE_TENSOR)
        self._dense = lru_cache(maxsize=len(_DENSE))(self._dense_uncached)

    def _dense_uncached(self, name: str) -> tuple[npt.NDArray[np.float32], np.float32]:
        values = self._source.tensor(name)
        return values, noise_scale(values, NOISE_PERCENT)

    def __call__(self, spec: TensorSpec) -> npt.NDArray[np.generic]:
        """bf16 patterns of the tensor, in its shape."""
        parts = spec.name.split(".")
        if "block_sparse_moe" not in parts:
            return bf16_from_fp32(self._source.tensor(spec.name))
        layer = int(parts[2])
        if parts[4] == "gate":
            return np.asarray(self._gates[layer])
        values, scale = self._dense(f"model.layers.{layer}.{_DENSE[parts[6]]}")
        return perturbed(values, scale, SEED, spec.name)


class CheckedWeights:
    """`DemoWeights` with each tensor's SHA-256 compared with the committed list.

    Raises CheckpointError at the first tensor that differs: this machine's arithmetic is not what the recipe
    assumes.
    """

    def __init__(self, source: GgufLlama) -> None:
        self._make = DemoWeights(source)
        self._expected: dict[str, str] = json.loads(DIGESTS.read_text())

    def __call__(self, spec: TensorSpec) -> npt.NDArray[np.generic]:
        """As `DemoWeights`."""
        array = self._make(spec)
        digest = tensor_digest(array)
        if digest != self._expected.get(spec.name):
            raise CheckpointError(
                f"demo model: {spec.name}: SHA-256: expected {self._expected.get(spec.name)}, got {digest}"
            )
        return array


def tensor_digest(array: npt.NDArray[np.generic]) -> str:
    """SHA-256 of the tensor's bytes as stored, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
