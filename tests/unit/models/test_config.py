"""config.json and generation_config.json: both spellings, and each wrong field by name."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from colibri.errors import CheckpointError
from colibri.models.config import parse_config
from colibri.models.generation_config import parse_generation_config

BASE: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Absent(Enum):
    """Its one member has a name, which test ids are made of."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


def changed(**fields: object) -> dict[str, Any]:
    raw = {**BASE, **fields}
    return {name: value for name, value in raw.items() if value is not ABSENT}


def test_mixtral_8x7b() -> None:
    config = parse_config(BASE)
    assert (config.hidden, config.ffn, config.layers, config.vocab) == (4096, 14336, 32, 32000)
    assert (config.experts, config.top_k, config.heads, config.kv_heads, config.head_dim) == (
        8,
        2,
        32,
        8,
        128,
    )
    assert (config.rms_eps, config.rope_theta, config.max_positions) == (1e-5, 1e6, 32768)
    assert (config.sliding_window, config.tied, config.dtype) == (None, False, "bf16")
    assert (config.bos, config.eos) == (1, (2,))
    assert config.expert_parameters == 3 * 4096 * 14336


def test_both_spellings_are_one_configuration() -> None:
    new = changed(
        rope_theta=ABSENT,
        rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"},
        torch_dtype=ABSENT,
        dtype="bfloat16",
        head_dim=None,
    )
    assert parse_config(new) == parse_config(BASE)
    assert parse_config(changed(rope_theta=ABSENT)) == parse_config(BASE), "the default of the class"
    assert parse_config(changed(rope_scaling=None, head_dim=128, rope_parameters=None)) == parse_config(BASE)
    assert parse_config(changed(dtype="bfloat16", rope_parameters={"rope_theta": 1e6})) == parse_config(BASE)


def test_optional_fields() -> None:
    assert parse_config(changed(head_dim=64)).head_dim == 64
    assert parse_config(changed(sliding_window=4096)).sliding_window == 4096
    assert parse_config(changed(eos_token_id=[2, 7])).eos == (2, 7)
    assert parse_config(changed(eos_token_id=None, bos_token_id=None)).eos == ()
    assert parse_config(changed(tie_word_embeddings=ABSENT)).tied is False
    assert parse_config(changed(torch_dtype="float16")).dtype == "fp16"
    assert parse_config(changed(torch_dtype="float32")).dtype == "fp32"
    assert parse_config(changed(torch_dtype=ABSENT), stored_dtype="fp16").dtype == "fp16"
    assert parse_config(changed(rope_theta=10000)).rope_theta == 10000.0


WRONG: list[tuple[str, dict[str, object]]] = [
    ("model_type: expected one of: mixtral, got 'llama'", {"model_type": "llama"}),
    ("model_type: expected one of: mixtral, got None", {"model_type": ABSENT}),
    ("architectures: ", {"architectures": ["MixtralForSequenceClassification"]}),
    ("architectures: ", {"architectures": "MixtralForCausalLM"}),
    ("hidden_size: expected an integer from 1 to 1048576, got None", {"hidden_size": ABSENT}),
    ("hidden_size: ", {"hidden_size": 0}),
    ("hidden_size: ", {"hidden_size": 4096.0}),
    ("hidden_size: ", {"hidden_size": True}),
    ("hidden_size: ", {"hidden_size": 1 << 40}),
    ("intermediate_size: ", {"intermediate_size": "14336"}),
    ("num_hidden_layers: ", {"num_hidden_layers": -1}),
    ("num_attention_heads: ", {"num_attention_heads": 0}),
    (
        "num_key_value_heads: expected a divisor of num_attention_heads = 32, got 5",
        {"num_key_value_heads": 5},
    ),
    ("head_dim: expected an even number", {"head_dim": 127}),
    ("head_dim: expected a number, since hidden_size 4096 is no multiple of 24", {"num_attention_heads": 24}),
    ("num_local_experts: ", {"num_local_experts": ABSENT}),
    ("num_experts_per_tok: expected an integer from 1 to 8, got 9", {"num_experts_per_tok": 9}),
    ("vocab_size: ", {"vocab_size": None}),
    ("rms_norm_eps: expected a finite number above 0, got 0", {"rms_norm_eps": 0}),
    ("rms_norm_eps: ", {"rms_norm_eps": float("nan")}),
    ("rope_theta: ", {"rope_theta": float("inf")}),
    ("rope_theta: expected one value in both spellings", {"rope_parameters": {"rope_theta": 10000.0}}),
    ("rope_parameters: ", {"rope_parameters": {"rope_theta": 1e6, "rope_type": "yarn", "factor": 4}}),
    ("rope_parameters: ", {"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.5}}),
    ("rope_parameters: expected an object or null", {"rope_parameters": 7}),
    ("rope_scaling: ", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("rope_scaling: ", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    ("max_position_embeddings: ", {"max_position_embeddings": ABSENT}),
    ("sliding_window: ", {"sliding_window": 0}),
    ("tie_word_embeddings: ", {"tie_word_embeddings": "yes"}),
    ("hidden_act: expected 'silu', got 'gelu'", {"hidden_act": "gelu"}),
    ("attention_bias: ", {"attention_bias": True}),
    ("partial_rotary_factor: ", {"partial_rotary_factor": 0.25}),
    ("quantization_config: ", {"quantization_config": {"bits": 4}}),
    ("auto_map: ", {"auto_map": {"AutoModel": "x.Y"}}),
    ("torch_dtype: expected one of: bfloat16, float16, float32, got 'int8'", {"torch_dtype": "int8"}),
    ("dtype: expected the same value as torch_dtype", {"dtype": "float16"}),
    ("dtype: ", {"torch_dtype": ABSENT}),
    ("bos_token_id: ", {"bos_token_id": 32000}),
    ("bos_token_id: ", {"bos_token_id": [1, 2]}),
    ("eos_token_id: expected token ids from 0 to 31999", {"eos_token_id": [2, -1]}),
    ("eos_token_id: ", {"eos_token_id": "</s>"}),
]


@pytest.mark.parametrize(("message", "fields"), WRONG, ids=[str(list(f.items())[-1])[:60] for _, f in WRONG])
def test_a_wrong_field_is_named(message: str, fields: dict[str, object]) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_config(changed(**fields))
    assert str(caught.value).startswith(f"config.json: {message}")
    assert "expected" in str(caught.value)


def test_generation_defaults_name_their_source() -> None:
    config = parse_config(BASE)
    empty = parse_generation_config({}, config)
    assert (empty.temperature, empty.top_p, empty.top_k, empty.max_new_tokens) == (0.0, 1.0, 0, None)
    assert (empty.eos, empty.sources["eos"]) == ((2,), "config.json")
    assert empty.sources["temperature"] == "built-in default"
    given = parse_generation_config(
        {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [2, 5], "max_new_tokens": 64},
        config,
    )
    assert (given.temperature, given.top_p, given.top_k, given.max_new_tokens) == (0.6, 0.9, 0, 64)
    assert (given.eos, given.sources["eos"]) == ((2, 5), "generation_config.json")
    assert given.sources == {**given.sources, "top_p": "generation_config.json", "top_k": "built-in default"}


def test_sampling_settings_count_only_with_do_sample() -> None:
    config = parse_config(BASE)
    assert parse_generation_config({"temperature": 0.6}, config).temperature == 0.0
    assert parse_generation_config({"do_sample": True}, config).temperature == 1.0
    assert parse_generation_config({"min_p": 0.1}, config).min_p == 0.0
    given = parse_generation_config({"do_sample": True, "min_p": 0.1}, config)
    assert (given.min_p, given.sources["min_p"]) == (0.1, "generation_config.json")


def test_a_repetition_penalty_counts_always() -> None:
    config = parse_config(BASE)
    assert parse_generation_config({}, config).repetition_penalty == 1.0
    given = parse_generation_config({"repetition_penalty": 1.2}, config)
    assert (given.repetition_penalty, given.sources["repetition_penalty"]) == (1.2, "generation_config.json")


def test_settings_without_effect_are_reported() -> None:
    raw = {
        "repetition_penalty": 1.1,
        "num_beams": 1,
        "no_repeat_ngram_size": 3,
        "typical_p": None,
        "min_length": 4,
        "use_cache": True,
    }
    assert parse_generation_config(raw, parse_config(BASE)).ignored == (
        "no_repeat_ngram_size",
        "min_length",
    )


@pytest.mark.parametrize(
    "raw",
    [
        {"do_sample": "yes"},
        {"do_sample": True, "temperature": -1},
        {"do_sample": True, "temperature": float("nan")},
        {"do_sample": True, "temperature": 1e-7},
        {"do_sample": True, "top_p": 1e-50},
        {"do_sample": True, "top_p": 0},
        {"do_sample": True, "top_p": 1.5},
        {"do_sample": True, "top_k": 1.5},
        {"do_sample": True, "min_p": 1.5},
        {"repetition_penalty": 0},
        {"repetition_penalty": float("inf")},
        {"eos_token_id": 32000},
        {"max_new_tokens": 0},
    ],
    ids=str,
)
def test_a_wrong_generation_field_is_named(raw: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=rf"generation_config.json: {list(raw)[-1]}: expected"):
        parse_generation_config(raw, parse_config(BASE))
