"""Checkpoints whose folder or JSON files are wrong."""

from __future__ import annotations

from pathlib import Path

from colibri.models.safetensors_writer import INDEX_NAME, SINGLE_NAME
from tests.integration.bad_input import folders as f
from tests.integration.bad_input.case import MODEL
from tests.integration.bad_input.checkpoint_case import CheckpointCase, wrong
from tests.integration.bad_input.folders import ABSENT, config

CONFIG = f"{MODEL}/config.json"
WEIGHTS = f"{MODEL}/{SINGLE_NAME}"
EMBEDDING = "model.embed_tokens.weight"


def _field(id: str, field: str, value: object, expected: str, got: str | None = None) -> CheckpointCase:
    """A wrong value in config.json."""
    how = f"config.json: no {field}" if value is ABSENT else f"config.json: {field} = {value!r:.60}"
    shown = "None" if value is ABSENT else repr(value)
    refusal = wrong("config.json", field, expected, shown if got is None else got)
    return CheckpointCase(f"config-{id}", how, config(**{field: value}), refusal)


def _default(id: str, field: str, expected: str, value: object, **others: object) -> CheckpointCase:
    """A wrong value in generation_config.json."""
    refusal = wrong("generation_config.json", field, expected, repr(value))
    damage = f.edit("generation_config.json", **{field: value, **others})
    return CheckpointCase(f"defaults-{id}", f"generation_config.json: {field} = {value!r}", damage, refusal)


def _gone(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _a_file(folder: Path) -> None:
    _gone(folder)
    folder.write_text("no folder")


FOLDERS = (
    CheckpointCase(
        "folder-absent", "a path that does not exist", _gone,
        wrong(MODEL, "", "a folder with a checkpoint", "nothing of that name"),
    ),
    CheckpointCase(
        "folder-is-a-file", "a file in place of the folder", _a_file,
        wrong(MODEL, "", "a folder with a checkpoint", "a file"),
    ),
    CheckpointCase(
        "config-absent", "no config.json", f.remove("config.json"),
        wrong(CONFIG, "", "a file", "nothing of that name"),
    ),
    CheckpointCase(
        "weights-absent", "no weights at all", f.remove(SINGLE_NAME),
        wrong(MODEL, "", f"{INDEX_NAME} or {SINGLE_NAME}", "neither"),
    ),
    CheckpointCase(
        "weights-are-pickles", "pytorch_model.bin instead of safetensors",
        f.in_order(f.remove(SINGLE_NAME), f.write("pytorch_model.bin", b"\x80\x04")),
        wrong(MODEL, "", f"{INDEX_NAME} or {SINGLE_NAME}", "pytorch_model.bin: convert them to safetensors"),
    ),
)  # fmt: skip

CONFIGS = (
    CheckpointCase(
        "config-empty", "an empty config.json", f.write("config.json", ""),
        wrong(CONFIG, "", "a JSON object", "none: Expecting value: line 1 column 1 (char 0)"),
    ),
    CheckpointCase(
        "config-list", "config.json holds a list", f.write("config.json", "[]"),
        wrong(CONFIG, "", "a JSON object", "list"),
    ),
    CheckpointCase(
        "config-twice", "config.json says hidden_size twice",
        f.write("config.json", '{"hidden_size": 32, "hidden_size": 64}'),
        wrong(CONFIG, "", "a JSON object", "none: the key 'hidden_size' occurs twice"),
    ),
    CheckpointCase(
        "config-nan", "config.json holds NaN", f.write("config.json", '{"rms_norm_eps": NaN}'),
        wrong(CONFIG, "", "a JSON object", "none: NaN is no JSON number"),
    ),
    CheckpointCase(
        "config-utf16", "config.json in UTF-16", f.write("config.json", "{}".encode("utf-16")),
        wrong(CONFIG, "", "a JSON object", "text that is no UTF-8 (byte 0: invalid start byte)"),
    ),
    CheckpointCase(
        "config-nested", "config.json nests 100,000 lists", f.write("config.json", "[" * 100_000),
        wrong(CONFIG, "", "a JSON object", "one nested too deep"),
    ),
    CheckpointCase(
        "config-huge", "config.json of 1 GiB", f.truncate_to("config.json", 1 << 30),
        wrong(CONFIG, "", "at most 1048576 bytes", "1073741824"),
    ),
    CheckpointCase(
        "config-pipe", "config.json is a pipe without a writer", f.pipe("config.json"),
        wrong(CONFIG, "", "a regular file", "something else"),
    ),
    CheckpointCase(
        "config-folder", "config.json is a folder", f.directory("config.json"),
        wrong(CONFIG, "", "a readable file", "the error: Is a directory"),
    ),
    CheckpointCase(
        "config-loop", "config.json is a symbolic link to itself", f.link("config.json", "config.json"),
        wrong(CONFIG, "", "a readable file", "the error: Too many levels of symbolic links"),
    ),
    _field("model-type-llama", "model_type", "llama", "one of: mixtral"),
    _field("model-type-qwen", "model_type", "qwen3_moe", "one of: mixtral"),
    _field("model-type-absent", "model_type", ABSENT, "one of: mixtral"),
    _field("model-type-control", "model_type", "mixtral\x1b[2J\n", "one of: mixtral", r"'mixtral\x1b[2J\n'"),
    _field("architecture", "architectures", ["LlamaForCausalLM"], "a list with MixtralForCausalLM"),
    _field(
        "quantised", "quantization_config", {"quant_method": "gptq"},
        "nothing (plain weights, no code of the checkpoint's)",
    ),
    _field(
        "remote-code", "auto_map", {"AutoModel": "evil.Model"},
        "nothing (plain weights, no code of the checkpoint's)",
    ),
    _field("activation", "hidden_act", "gelu", "'silu'"),
    _field("bias", "attention_bias", True, "False"),
    _field("hidden-absent", "hidden_size", ABSENT, "an integer from 1 to 1048576"),
    _field("hidden-zero", "hidden_size", 0, "an integer from 1 to 1048576"),
    _field("hidden-negative", "hidden_size", -32, "an integer from 1 to 1048576"),
    _field("hidden-text", "hidden_size", "32", "an integer from 1 to 1048576"),
    _field("hidden-fraction", "hidden_size", 32.5, "an integer from 1 to 1048576"),
    _field("hidden-boolean", "hidden_size", True, "an integer from 1 to 1048576"),
    _field("hidden-beyond-64-bits", "hidden_size", 1 << 64, "an integer from 1 to 1048576"),
    _field("vocab-huge", "vocab_size", 1 << 40, "an integer from 1 to 16777216"),
    _field("kv-heads", "num_key_value_heads", 3, "a divisor of num_attention_heads = 4"),
    _field("head-odd", "head_dim", 7, "an even number (RoPE turns pairs)"),
    CheckpointCase(
        "config-head-missing", "config.json: 5 heads, hidden_size 32, no head_dim",
        config(num_attention_heads=5, num_key_value_heads=1, head_dim=ABSENT),
        wrong(
            "config.json", "head_dim", "a number, since hidden_size 32 is no multiple of 5 heads", "None"
        ),
    ),
    _field("experts-none", "num_local_experts", 0, "an integer from 1 to 65536"),
    _field("top-k-beyond", "num_experts_per_tok", 5, "an integer from 1 to 4"),
    CheckpointCase(
        "config-top-k-kernels", "config.json: 17 of 64 experts per token",
        config(num_local_experts=64, num_experts_per_tok=17),
        wrong("config.json", "num_experts_per_tok", "an integer from 1 to 16", "17"),
    ),
    CheckpointCase(
        "config-runaway", "config.json claims 4,096 layers of 65,536 experts",
        config(num_hidden_layers=4096, num_local_experts=65536),
        wrong(
            MODEL, "tensors", "805335043, by config.json",
            "41, and none named " + ", ".join(
                f"model.layers.0.block_sparse_moe.experts.{name}.weight"
                for name in ("4.w1", "4.w2", "4.w3", "5.w1")
            ) + " and others",
        ),
    ),
    _field("eps-zero", "rms_norm_eps", 0, "a finite number above 0"),
    CheckpointCase(
        "config-eps-infinite", "config.json: rms_norm_eps = 1e999",
        lambda folder: (folder / "config.json").write_text(
            (folder / "config.json").read_text().replace("1e-05", "1e999")
        ),
        wrong(CONFIG, "", "a JSON object", "none: 1e999 is beyond any float"),
    ),
    _field("theta-negative", "rope_theta", -1.0, "a finite number above 0"),
    _field(
        "rope-scaled", "rope_scaling", {"type": "yarn", "factor": 4.0},
        "rope_type 'default' over the whole head (scaled RoPE is not supported)",
    ),
    CheckpointCase(
        "config-theta-twice", "config.json: rope_theta 1e6 and 1e4 in rope_parameters",
        config(rope_parameters={"rope_theta": 1e4}),
        wrong(
            "config.json", "rope_theta", "one value in both spellings",
            "{'rope_theta': 1000000.0, 'rope_parameters.rope_theta': 10000.0}",
        ),
    ),
    _field("window-zero", "sliding_window", 0, "an integer from 1 to 4611686018427387904"),
    _field("tied-text", "tie_word_embeddings", "yes", "true or false"),
    _field("dtype", "torch_dtype", "float64", "one of: bfloat16, float16, float32"),
    CheckpointCase(
        "config-dtype-twice", "config.json: dtype and torch_dtype differ", config(dtype="float32"),
        wrong(
            "config.json", "dtype", "the same value as torch_dtype",
            "{'dtype': 'float32', 'torch_dtype': 'bfloat16'}",
        ),
    ),
    _field("eos-beyond", "eos_token_id", 300, "token ids from 0 to 299"),
    _field("eos-nested", "eos_token_id", [2, [3]], "token ids from 0 to 299"),
    _field("bos-two", "bos_token_id", [1, 2], "one token id or null"),
    _field("positions-zero", "max_position_embeddings", 0, "an integer from 1 to 67108864"),
    CheckpointCase(
        "config-against-shapes", "config.json: intermediate_size 64 over files with 48",
        config(intermediate_size=64),
        wrong(
            f"{WEIGHTS}: model.layers.0.block_sparse_moe.experts.0.w1.weight", "shape", "[64, 32]", "[48, 32]"
        ),
    ),
    CheckpointCase(
        "config-against-dtype", "config.json: float32 over files in bf16", config(torch_dtype="float32"),
        wrong(f"{WEIGHTS}: {EMBEDDING}", "dtype", "F32 (config.json)", "BF16"),
    ),
    _default("temperature", "temperature", "a number from 0 to 100", -1, do_sample=True),
    _default("top-p", "top_p", "a number above 0, at most 1", 0, do_sample=True),
    _default("sample", "do_sample", "true or false", "yes"),
    _default("eos", "eos_token_id", "token ids from 0 to 299", 2**40),
    _default("new-tokens", "max_new_tokens", "an integer of at least 1", 0),
    CheckpointCase(
        "defaults-broken", "generation_config.json ends early", f.write("generation_config.json", '{"a": '),
        wrong(
            f"{MODEL}/generation_config.json", "", "a JSON object",
            "none: Expecting value: line 1 column 7 (char 6)",
        ),
    ),
)  # fmt: skip
