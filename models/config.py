"""Read a Mixtral model's configuration from config.json, as transformers 4 and 5 write it.

Refuses everything that would change the mathematics and is not implemented.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from colibri.errors import CheckpointError
from colibri.kernels.api import MAX_TOP_K
from colibri.models.dtypes import BY_CONFIG

SUPPORTED_MODEL_TYPES = ("mixtral",)
_ARCHITECTURE = "MixtralForCausalLM"
_DEFAULT_ROPE_THETA = 1e6
"""What transformers' MixtralConfig takes where a file says nothing."""
_SOURCE = "config.json"


@dataclass(frozen=True, slots=True)
class MixtralConfig:
    """Sizes and constants of a Mixtral model.

    hidden, ffn, head_dim: in elements.
    max_positions, sliding_window: in tokens; sliding_window None: full attention.
    dtype: 'bf16', 'fp16' or 'fp32', of every tensor.
    tied: the head is the embedding.
    eos: ids that end a text; may be empty.
    """

    hidden: int
    ffn: int
    layers: int
    experts: int
    top_k: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rms_eps: float
    rope_theta: float
    max_positions: int
    sliding_window: int | None
    tied: bool
    dtype: str
    bos: int | None
    eos: tuple[int, ...]

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert of one layer."""
        return 3 * self.ffn * self.hidden


def wrong(field: str, expected: str, got: object, source: str = _SOURCE) -> CheckpointError:
    """Returns the error for a field of a checkpoint's JSON file."""
    return CheckpointError.of(source, field, expected, repr(got))


def parse_config(raw: Mapping[str, Any], *, stored_dtype: str | None = None) -> MixtralConfig:
    """Checks and translates the object in config.json.

    stored_dtype: 'bf16', ...: used if the file names no dtype.

    Raises CheckpointError that names the field, what was expected and what it got.
    """
    _check_family(raw)
    hidden = _integer(raw, "hidden_size", 1 << 20)
    heads = _integer(raw, "num_attention_heads", 1 << 14)
    kv_heads = _integer(raw, "num_key_value_heads", 1 << 14)
    if heads % kv_heads:
        raise wrong("num_key_value_heads", f"a divisor of num_attention_heads = {heads}", kv_heads)
    if raw.get("head_dim") is None:
        if hidden % heads:
            raise wrong(
                "head_dim", f"a number, since hidden_size {hidden} is no multiple of {heads} heads", None
            )
        head_dim = hidden // heads
    else:
        head_dim = _integer(raw, "head_dim", 1 << 14)
    if head_dim % 2:
        raise wrong("head_dim", "an even number (RoPE turns pairs)", head_dim)
    experts = _integer(raw, "num_local_experts", 1 << 16)
    vocab = _integer(raw, "vocab_size", 1 << 24)
    tied = raw.get("tie_word_embeddings", False)
    if not isinstance(tied, bool):
        raise wrong("tie_word_embeddings", "true or false", tied)
    window = raw.get("sliding_window")
    return MixtralConfig(
        hidden=hidden,
        ffn=_integer(raw, "intermediate_size", 1 << 22),
        layers=_integer(raw, "num_hidden_layers", 1 << 12),
        experts=experts,
        top_k=_integer(raw, "num_experts_per_tok", min(experts, MAX_TOP_K)),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=vocab,
        rms_eps=_positive(raw, "rms_norm_eps"),
        rope_theta=_rope_theta(raw),
        max_positions=_integer(raw, "max_position_embeddings", 1 << 26),
        sliding_window=None if window is None else _integer(raw, "sliding_window", 1 << 62),
        tied=tied,
        dtype=_dtype(raw, stored_dtype),
        bos=_bos(raw, vocab),
        eos=token_ids(raw.get("eos_token_id"), "eos_token_id", vocab, _SOURCE),
    )


def token_ids(value: object, field: str, vocab: int, source: str) -> tuple[int, ...]:
    """Returns an id, a list of ids or null as a tuple. Each id must lie in the vocabulary."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab:
            raise wrong(field, f"token ids from 0 to {vocab - 1}", value, source)
    return tuple(ids)


def _check_family(raw: Mapping[str, Any]) -> None:
    model_type = raw.get("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise wrong("model_type", f"one of: {', '.join(SUPPORTED_MODEL_TYPES)}", model_type)
    architectures = raw.get("architectures", [_ARCHITECTURE])
    if not isinstance(architectures, list) or _ARCHITECTURE not in architectures:
        raise wrong("architectures", f"a list with {_ARCHITECTURE}", architectures)
    for field in ("quantization_config", "auto_map"):
        if raw.get(field) is not None:
            raise wrong(field, "nothing (plain weights, no code of the checkpoint's)", raw[field])
    for field, only in (("hidden_act", "silu"), ("attention_bias", False), ("partial_rotary_factor", 1)):
        if raw.get(field, only) != only:
            raise wrong(field, repr(only), raw[field])


def _rope_theta(raw: Mapping[str, Any]) -> float:
    """Reads theta from `rope_parameters` (transformers 5), or `rope_theta` with `rope_scaling` (4); no scaling is
    supported.
    """
    found = {}
    if raw.get("rope_theta") is not None:
        found["rope_theta"] = _positive(raw, "rope_theta")
    for field in ("rope_parameters", "rope_scaling"):
        group = raw.get(field)
        if group is None:
            continue
        if not isinstance(group, dict):
            raise wrong(field, "an object or null", group)
        kind = group.get("rope_type", group.get("type", "default"))
        if kind != "default" or group.get("partial_rotary_factor", 1) != 1:
            raise wrong(
                field, "rope_type 'default' over the whole head (scaled RoPE is not supported)", group
            )
        if group.get("rope_theta") is not None:
            found[f"{field}.rope_theta"] = _positive(group, "rope_theta", f"{field}.rope_theta")
    if len(set(found.values())) > 1:
        raise wrong("rope_theta", "one value in both spellings", found)
    return next(iter(found.values()), _DEFAULT_ROPE_THETA)


def _dtype(raw: Mapping[str, Any], stored: str | None) -> str:
    named = {field: raw[field] for field in ("dtype", "torch_dtype") if raw.get(field) is not None}
    for field, value in named.items():
        if not isinstance(value, str) or value not in BY_CONFIG:
            raise wrong(field, f"one of: {', '.join(BY_CONFIG)}", value)
    if len(set(named.values())) > 1:
        raise wrong("dtype", "the same value as torch_dtype", named)
    if named:
        return BY_CONFIG[next(iter(named.values()))].name
    if stored is None:
        raise wrong("dtype", f"one of: {', '.join(BY_CONFIG)}", None)
    return stored


def _bos(raw: Mapping[str, Any], vocab: int) -> int | None:
    ids = token_ids(raw.get("bos_token_id"), "bos_token_id", vocab, _SOURCE)
    if len(ids) > 1:
        raise wrong("bos_token_id", "one token id or null", raw["bos_token_id"])
    return ids[0] if ids else None


def _integer(raw: Mapping[str, Any], field: str, largest: int) -> int:
    value = raw.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
        raise wrong(field, f"an integer from 1 to {largest}", value)
    return value


def _positive(raw: Mapping[str, Any], field: str, label: str | None = None) -> float:
    value = raw.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise wrong(label or field, "a finite number above 0", value)
    return float(value)
