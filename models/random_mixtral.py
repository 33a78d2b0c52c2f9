"""Write random-weight Mixtrals for tests and benchmarks: `python -m colibri.models.random_mixtral OUT
[--hidden ...]`.

Every tensor is drawn by (seed, crc32 of its name) from exact noise, so that the same parameters give the same
bytes on every machine, whatever the shard size, and both expert layouts hold equal experts. Scales keep
activations near unit variance: std 1/sqrt(fan_in), the two projections that write to the residual stream
1/sqrt(2 * layers) less, the gate's logits have std `router_std` over tokens.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.errors import InvalidInput
from colibri.models.config import MixtralConfig, parse_config
from colibri.models.dtypes import BF16, BY_NAME, bf16_from_fp32
from colibri.models.exact_noise import normal_like
from colibri.models.plain_tokenizer import BOS_ID, EOS_ID, MIN_VOCAB, write_plain_tokenizer
from colibri.models.safetensors_writer import TensorSpec, write_weights
from colibri.models.tensor_names import EMBEDDING, ExpertLayout, model_tensors


@dataclass(frozen=True, slots=True)
class RandomMixtral:
    """Parameters of a random Mixtral; the defaults give 3.05 B parameters. `head_dim` 0: hidden / heads."""

    hidden: int = 2048
    ffn: int = 7168
    layers: int = 8
    experts: int = 8
    top_k: int = 2
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 0
    vocab: int = 32000
    max_positions: int = 4096
    sliding_window: int | None = None
    rope_theta: float = 1e6
    dtype: str = "bf16"
    tied: bool = False
    layout: ExpertLayout = ExpertLayout.PER_EXPERT
    router_std: float = 1.0
    seed: int = 0
    shard_mb: int = 1024


MIXTRAL_8X7B = RandomMixtral(
    hidden=4096, ffn=14336, layers=32, heads=32, kv_heads=8, max_positions=32768, shard_mb=4800
)
"""Shapes of Mixtral-8x7B: 46.7 B parameters, 93.4 GB in bf16."""


def random_mixtral(out: str | Path, params: RandomMixtral) -> Path:
    """Writes the model into the new or empty folder `out`. Returns it.

    Raises InvalidInput for a folder with content, CheckpointError if the parameters make no valid configuration.
    """
    return _write(Path(out), params, _Draw(params))


def sparse_mixtral(out: str | Path, params: RandomMixtral = MIXTRAL_8X7B) -> Path:
    """Writes a model with holes for weights: valid files of full apparent size that read as zeros.

    They take a few MB of disk on a file system with sparse files.
    """
    return _write(Path(out), params, None)


def _write(out: Path, params: RandomMixtral, draw: _Draw | None) -> Path:
    raw = _config(params)
    config = parse_config(raw)
    if params.vocab < MIN_VOCAB:
        raise InvalidInput("vocab", f"at least {MIN_VOCAB}", params.vocab)
    if params.shard_mb < 1:
        raise InvalidInput("shard_mb", "at least 1", params.shard_mb)
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise InvalidInput("out", "a new or empty folder", out)
    write_weights(out, model_tensors(config, params.layout), draw, params.shard_mb << 20)
    _write_json(out / "config.json", raw)
    _write_json(out / "generation_config.json", {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID})
    write_plain_tokenizer(out, params.vocab, params.max_positions)
    return out


class _Draw:
    """Makes each tensor; a fused one from the tensors that the per-expert layout would have."""

    def __init__(self, params: RandomMixtral) -> None:
        self._params = params
        self._config: MixtralConfig = parse_config(_config(params))
        self._round = _rounding(params.dtype)

    def __call__(self, spec: TensorSpec) -> NDArray[Any]:
        name = spec.name
        if name.endswith("norm.weight"):
            return self._round(np.ones(spec.shape, dtype=np.float32))
        pieces = name.split(".")
        if pieces[-1] in ("gate_up_proj", "down_proj"):
            matrices = ("w1", "w3") if pieces[-1] == "gate_up_proj" else ("w2",)
            return np.stack([self._expert(int(pieces[2]), e, matrices) for e in range(spec.shape[0])])
        if "experts" in pieces:
            return self._expert(int(pieces[2]), int(pieces[5]), (pieces[6],))
        if pieces[-2] == "gate":
            name = f"model.layers.{pieces[2]}.block_sparse_moe.gate.weight"
        return self._round(normal_like(self._params.seed, name, spec.shape, self._std(name)))

    def _expert(self, layer: int, expert: int, matrices: tuple[str, ...]) -> NDArray[Any]:
        h, f = self._config.hidden, self._config.ffn
        drawn = []
        for matrix in matrices:
            name = f"model.layers.{layer}.block_sparse_moe.experts.{expert}.{matrix}.weight"
            shape = (h, f) if matrix == "w2" else (f, h)
            drawn.append(normal_like(self._params.seed, name, shape, self._std(name)))
        return self._round(np.concatenate(drawn))

    def _std(self, name: str) -> float:
        c = self._config
        if name == EMBEDDING:
            # A tied head would see nothing but the last token's own embedding if that were large.
            return 2 / sqrt(c.hidden) if c.tied else 1.0
        if name.endswith("o_proj.weight"):
            return 1 / sqrt(c.heads * c.head_dim * 2 * c.layers)
        if name.endswith("w2.weight"):
            return 1 / sqrt(c.ffn * 2 * c.layers) / _SWIGLU_RMS
        if name.endswith("gate.weight"):
            return self._params.router_std / sqrt(c.hidden)
        return 1 / sqrt(c.hidden)


_SWIGLU_RMS = 0.6
"""Root mean square of silu(g) * u for independent unit normal g and u, rounded."""


def _rounding(dtype: str) -> Callable[[NDArray[np.float32]], NDArray[Any]]:
    if dtype == BF16.name:
        return bf16_from_fp32
    return lambda values: values.astype(BY_NAME[dtype].numpy, copy=False)


def _config(params: RandomMixtral) -> dict[str, object]:
    if params.dtype not in BY_NAME:
        raise InvalidInput("dtype", f"one of: {', '.join(BY_NAME)}", params.dtype)
    if params.heads < 1:
        raise InvalidInput("heads", "at least 1", params.heads)
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": params.vocab,
        "hidden_size": params.hidden,
        "intermediate_size": params.ffn,
        "num_hidden_layers": params.layers,
        "num_attention_heads": params.heads,
        "num_key_value_heads": params.kv_heads,
        "head_dim": params.head_dim or params.hidden // params.heads,
        "hidden_act": "silu",
        "max_position_embeddings": params.max_positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": params.rope_theta,
        "sliding_window": params.sliding_window,
        "num_local_experts": params.experts,
        "num_experts_per_tok": params.top_k,
        "tie_word_embeddings": params.tied,
        "attention_dropout": 0.0,
        "router_aux_loss_coef": 0.02,
        "output_router_logits": False,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "torch_dtype": BY_NAME[params.dtype].config,
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    for field in fields(RandomMixtral):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action="store_true")
        elif isinstance(field.default, ExpertLayout):
            parser.add_argument(
                flag, choices=[layout.name.lower() for layout in ExpertLayout], default="per_expert"
            )
        else:
            kind = int if field.default is None else type(field.default)
            parser.add_argument(flag, type=kind, default=field.default)
    parser.add_argument("--sparse", action="store_true", help="holes instead of weights")
    options = vars(parser.parse_args())
    out, sparse = options.pop("out"), options.pop("sparse")
    options["layout"] = ExpertLayout[options["layout"].upper()]
    params = RandomMixtral(**options)
    (sparse_mixtral if sparse else random_mixtral)(out, params)
    count = sum(spec.nbytes for spec in model_tensors(parse_config(_config(params)), params.layout))
    parameters = count / BY_NAME[params.dtype].itemsize
    print(f"{out}: {parameters / 1e9:.3f} B parameters, {count / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
