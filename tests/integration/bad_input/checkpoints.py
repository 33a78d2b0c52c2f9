"""The table of checkpoints that must be refused: what is wrong with the folder, and the line that says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from colibri.errors import Code
from colibri.models.safetensors_file import MAX_HEADER_BYTES
from colibri.models.safetensors_writer import INDEX_NAME, SINGLE_NAME
from tests.integration.bad_input import folders as f
from tests.integration.bad_input.case import ANY, MODEL, Refusal
from tests.integration.bad_input.folders import ABSENT, EXPERT, FIRST, NORM, SECOND, Damage, config

CONFIG = f"{MODEL}/config.json"
WEIGHTS = f"{MODEL}/{SINGLE_NAME}"
INDEX = f"{MODEL}/{INDEX_NAME}"
TOKENIZER = f"{MODEL}/tokenizer.json"
EMBEDDING = "model.embed_tokens.weight"
_DTYPES = (
    "F4, F6_E2M3, F6_E3M2, BOOL, U8, I8, F8_E4M3, F8_E5M2, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, U16, I16, F16, BF16, "
    "U32, I32, F32, U64, I64, F64, C64"
)
_SIZES = "at most 8 sizes below 2^63"
_OFFSETS = "two byte offsets below 2^63"
_NAN, _INF = 0x7FC1, 0xFF80


class Stage(Enum):
    """When it shows: while headers are read, while the tokenizer or the chat template is loaded, while weights are
    packed."""

    OPEN = "open"
    TOKENIZER = "tokenizer"
    TEMPLATE = "template"
    WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class CheckpointCase:
    """`how`: what is done to a good checkpoint."""

    id: str
    how: str
    damage: Damage
    refusal: Refusal
    stage: Stage = Stage.OPEN


def _wrong(where: str, field: str, expected: str, got: str) -> Refusal:
    return Refusal(Code.FAILED_PRECONDITION, field, expected, got, where)


def _field(id: str, field: str, value: object, expected: str, got: str | None = None) -> CheckpointCase:
    """A wrong value in config.json."""
    how = f"config.json: no {field}" if value is ABSENT else f"config.json: {field} = {value!r:.60}"
    shown = "None" if value is ABSENT else repr(value)
    refusal = _wrong("config.json", field, expected, shown if got is None else got)
    return CheckpointCase(f"config-{id}", how, config(**{field: value}), refusal)


def _default(id: str, field: str, expected: str, value: object, **others: object) -> CheckpointCase:
    """A wrong value in generation_config.json."""
    refusal = _wrong("generation_config.json", field, expected, repr(value))
    damage = f.edit("generation_config.json", **{field: value, **others})
    return CheckpointCase(f"defaults-{id}", f"generation_config.json: {field} = {value!r}", damage, refusal)


def _entry(id: str, how: str, damage: Damage, field: str, expected: str, got: str) -> CheckpointCase:
    """A wrong entry of the norm's in the header of the weights."""
    return CheckpointCase(
        f"header-{id}", how, damage, _wrong(f"{WEIGHTS}: {NORM}" if field else WEIGHTS, field, expected, got)
    )


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
        _wrong(MODEL, "", "a folder with a checkpoint", "nothing of that name"),
    ),
    CheckpointCase(
        "folder-is-a-file", "a file in place of the folder", _a_file,
        _wrong(MODEL, "", "a folder with a checkpoint", "a file"),
    ),
    CheckpointCase(
        "config-absent", "no config.json", f.remove("config.json"),
        _wrong(CONFIG, "", "a file", "nothing of that name"),
    ),
    CheckpointCase(
        "weights-absent", "no weights at all", f.remove(SINGLE_NAME),
        _wrong(MODEL, "", f"{INDEX_NAME} or {SINGLE_NAME}", "neither"),
    ),
    CheckpointCase(
        "weights-are-pickles", "pytorch_model.bin instead of safetensors",
        f.in_order(f.remove(SINGLE_NAME), f.write("pytorch_model.bin", b"\x80\x04")),
        _wrong(MODEL, "", f"{INDEX_NAME} or {SINGLE_NAME}", "pytorch_model.bin: convert them to safetensors"),
    ),
)  # fmt: skip

CONFIGS = (
    CheckpointCase(
        "config-empty", "an empty config.json", f.write("config.json", ""),
        _wrong(CONFIG, "", "a JSON object", "none: Expecting value: line 1 column 1 (char 0)"),
    ),
    CheckpointCase(
        "config-list", "config.json holds a list", f.write("config.json", "[]"),
        _wrong(CONFIG, "", "a JSON object", "list"),
    ),
    CheckpointCase(
        "config-twice", "config.json says hidden_size twice",
        f.write("config.json", '{"hidden_size": 32, "hidden_size": 64}'),
        _wrong(CONFIG, "", "a JSON object", "none: the key 'hidden_size' occurs twice"),
    ),
    CheckpointCase(
        "config-nan", "config.json holds NaN", f.write("config.json", '{"rms_norm_eps": NaN}'),
        _wrong(CONFIG, "", "a JSON object", "none: NaN is no JSON number"),
    ),
    CheckpointCase(
        "config-utf16", "config.json in UTF-16", f.write("config.json", "{}".encode("utf-16")),
        _wrong(CONFIG, "", "a JSON object", "text that is no UTF-8 (byte 0: invalid start byte)"),
    ),
    CheckpointCase(
        "config-nested", "config.json nests 100,000 lists", f.write("config.json", "[" * 100_000),
        _wrong(CONFIG, "", "a JSON object", "one nested too deep"),
    ),
    CheckpointCase(
        "config-huge", "config.json of 1 GiB", f.truncate_to("config.json", 1 << 30),
        _wrong(CONFIG, "", "at most 1048576 bytes", "1073741824"),
    ),
    CheckpointCase(
        "config-pipe", "config.json is a pipe without a writer", f.pipe("config.json"),
        _wrong(CONFIG, "", "a regular file", "something else"),
    ),
    CheckpointCase(
        "config-folder", "config.json is a folder", f.directory("config.json"),
        _wrong(CONFIG, "", "a readable file", "the error: Is a directory"),
    ),
    CheckpointCase(
        "config-loop", "config.json is a symbolic link to itself", f.link("config.json", "config.json"),
        _wrong(CONFIG, "", "a readable file", "the error: Too many levels of symbolic links"),
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
        _wrong(
            "config.json", "head_dim", "a number, since hidden_size 32 is no multiple of 5 heads", "None"
        ),
    ),
    _field("experts-none", "num_local_experts", 0, "an integer from 1 to 65536"),
    _field("top-k-beyond", "num_experts_per_tok", 5, "an integer from 1 to 4"),
    CheckpointCase(
        "config-top-k-kernels", "config.json: 17 of 64 experts per token",
        config(num_local_experts=64, num_experts_per_tok=17),
        _wrong("config.json", "num_experts_per_tok", "an integer from 1 to 16", "17"),
    ),
    CheckpointCase(
        "config-runaway", "config.json claims 4,096 layers of 65,536 experts",
        config(num_hidden_layers=4096, num_local_experts=65536),
        _wrong(
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
        _wrong("config.json", "rms_norm_eps", "a finite number above 0", "inf"),
    ),
    _field("theta-negative", "rope_theta", -1.0, "a finite number above 0"),
    _field(
        "rope-scaled", "rope_scaling", {"type": "yarn", "factor": 4.0},
        "rope_type 'default' over the whole head (scaled RoPE is not supported)",
    ),
    CheckpointCase(
        "config-theta-twice", "config.json: rope_theta 1e6 and 1e4 in rope_parameters",
        config(rope_parameters={"rope_theta": 1e4}),
        _wrong(
            "config.json", "rope_theta", "one value in both spellings",
            "{'rope_theta': 1000000.0, 'rope_parameters.rope_theta': 10000.0}",
        ),
    ),
    _field("window-zero", "sliding_window", 0, "an integer from 1 to 4611686018427387904"),
    _field("tied-text", "tie_word_embeddings", "yes", "true or false"),
    _field("dtype", "torch_dtype", "float64", "one of: bfloat16, float16, float32"),
    CheckpointCase(
        "config-dtype-twice", "config.json: dtype and torch_dtype differ", config(dtype="float32"),
        _wrong(
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
        _wrong(
            f"{WEIGHTS}: model.layers.0.block_sparse_moe.experts.0.w1.weight", "shape", "[64, 32]", "[48, 32]"
        ),
    ),
    CheckpointCase(
        "config-against-dtype", "config.json: float32 over files in bf16", config(torch_dtype="float32"),
        _wrong(f"{WEIGHTS}: {EMBEDDING}", "dtype", "F32 (config.json)", "BF16"),
    ),
    _default("temperature", "temperature", "a number from 0 to 100", -1, do_sample=True),
    _default("top-p", "top_p", "a number above 0, at most 1", 0, do_sample=True),
    _default("sample", "do_sample", "true or false", "yes"),
    _default("eos", "eos_token_id", "token ids from 0 to 299", 2**40),
    _default("new-tokens", "max_new_tokens", "an integer of at least 1", 0),
    CheckpointCase(
        "defaults-broken", "generation_config.json ends early", f.write("generation_config.json", '{"a": '),
        _wrong(
            f"{MODEL}/generation_config.json", "", "a JSON object",
            "none: Expecting value: line 1 column 7 (char 6)",
        ),
    ),
)  # fmt: skip


def _over_all(found: f.Json) -> None:
    found[NORM]["data_offsets"] = list(found["lm_head.weight"]["data_offsets"])


SAFETENSORS = (
    CheckpointCase(
        "weights-empty", "weights of 0 bytes", f.truncate_to(SINGLE_NAME, 0),
        _wrong(WEIGHTS, "header length", "8 bytes", "a file of 0"),
    ),
    CheckpointCase(
        "weights-7-bytes", "weights of 7 bytes", f.truncate_to(SINGLE_NAME, 7),
        _wrong(WEIGHTS, "header length", "8 bytes", "a file of 7"),
    ),
    CheckpointCase(
        "weights-lfs", "a Git LFS pointer in place of the weights",
        f.write(SINGLE_NAME, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
        _wrong(WEIGHTS, "", "weights", "a pointer of Git LFS: fetch the file itself, as `git lfs pull` does"),
    ),
    CheckpointCase(
        "weights-html", "an error page in place of the weights", f.write(SINGLE_NAME, "<!DOCTYPE html>" * 9),
        _wrong(WEIGHTS, "header length", f"at most {MAX_HEADER_BYTES}", "5789751444030890300"),
    ),
    CheckpointCase(
        "weights-truncated", "weights cut by a byte", f.resize(SINGLE_NAME, -1),
        _wrong(WEIGHTS, "file size", f"{ANY} bytes, as its header says", ANY),
    ),
    CheckpointCase(
        "weights-oversized", "weights with a byte too many", f.resize(SINGLE_NAME, 1),
        _wrong(WEIGHTS, "file size", f"{ANY} bytes, as its header says", ANY),
    ),
    CheckpointCase(
        "weights-header-only", "weights cut after the header", f.truncate_to(SINGLE_NAME, 5000),
        _wrong(WEIGHTS, "file size", f"{ANY} bytes, as its header says", "5000"),
    ),
    CheckpointCase(
        "weights-pipe", "weights are a pipe without a writer", f.pipe(SINGLE_NAME),
        _wrong(WEIGHTS, "", "a regular file", "something else"),
    ),
    CheckpointCase(
        "header-beyond-file", "a header longer than the file", f.raw_header(b"{}", 1 << 20),
        _wrong(WEIGHTS, "header length", "at most 125250, since the file has 125258 bytes", "1048576"),
    ),
    CheckpointCase(
        "header-length-64-bits", "a header length of 2^64 - 1", f.raw_header(b"{}", (1 << 64) - 1),
        _wrong(WEIGHTS, "header length", f"at most {MAX_HEADER_BYTES}", str((1 << 64) - 1)),
    ),
    CheckpointCase(
        "header-no-json", "a header that ends early", f.raw_header(b'{"a": '),
        _wrong(f"{WEIGHTS}: header", "", "a JSON object", "none: Expecting value: line 1 column 7 (char 6)"),
    ),
    CheckpointCase(
        "header-list", "a list as header", f.raw_header(b"[]"),
        _wrong(f"{WEIGHTS}: header", "", "a JSON object", "list"),
    ),
    CheckpointCase(
        "header-no-utf8", "a header that is no UTF-8", f.raw_header(b'{"\xff": 1}'),
        _wrong(
            f"{WEIGHTS}: header", "", "a JSON object", "text that is no UTF-8 (byte 2: invalid start byte)"
        ),
    ),
    CheckpointCase(
        "header-duplicate", "a tensor twice in the header", f.raw_header(b'{"a": {}, "a": {}}'),
        _wrong(f"{WEIGHTS}: header", "", "a JSON object", "none: the key 'a' occurs twice"),
    ),
    CheckpointCase(
        "header-nested", "a header that nests 100,000 lists", f.raw_header(b"[" * 100_000),
        _wrong(f"{WEIGHTS}: header", "", "a JSON object", "one nested too deep"),
    ),
    CheckpointCase(
        "header-metadata", "metadata that is no text", f.header(lambda found: found.update(__metadata__={"a": 1})),
        _wrong(WEIGHTS, "__metadata__", "an object of strings", "{'a': 1}"),
    ),
    _entry("overlap", "two tensors that overlap", f.entry(NORM, data_offsets=[105900, 105964]),
           "data_offsets", f"a begin at {ANY}, where {ANY} ends", "105900 (an overlap)"),
    _entry("hole", "a hole between two tensors", f.entry(NORM, data_offsets=[106000, 106064]),
           "data_offsets", f"a begin at {ANY}, where {ANY} ends", "106000 (a hole)"),
    _entry("backwards", "offsets backwards", f.entry(NORM, data_offsets=[64, 0]),
           "data_offsets", "64 bytes for BF16 [32]", "-64 bytes"),
    _entry("negative", "negative offsets", f.entry(NORM, data_offsets=[-64, 0]),
           "data_offsets", _OFFSETS, "[-64, 0]"),
    _entry("three-offsets", "three offsets", f.entry(NORM, data_offsets=[0, 64, 64]),
           "data_offsets", _OFFSETS, "[0, 64, 64]"),
    _entry("offsets-64-bits", "offsets beyond 63 bits", f.entry(NORM, data_offsets=[1 << 63, (1 << 63) + 64]),
           "data_offsets", _OFFSETS, f"[{1 << 63}, {(1 << 63) + 64}]"),
    CheckpointCase(
        "header-offsets-beyond-file", "a tensor beyond the file",
        f.entry("lm_head.weight", data_offsets=[1 << 40, (1 << 40) + 19200]),
        _wrong(
            f"{WEIGHTS}: lm_head.weight", "data_offsets", f"a begin at 106048, where {NORM} ends",
            f"{1 << 40} (a hole)",
        ),
    ),
    _entry("shape-huge", "a shape beyond its bytes", f.entry(NORM, shape=[33]),
           "data_offsets", "66 bytes for BF16 [33]", "64 bytes"),
    _entry("shape-product", "a shape whose product exceeds 64 bits", f.entry(NORM, shape=[1 << 40, 1 << 40]),
           "data_offsets", f"{2 << 80} bytes for BF16 {[1 << 40, 1 << 40]}", "64 bytes"),
    _entry("shape-wraps", "a shape whose product wraps to the right one",
           f.entry(NORM, shape=[32, (1 << 62) + 1, 4, 1]),
           "data_offsets", f"{256 * ((1 << 62) + 1)} bytes for BF16 {[32, (1 << 62) + 1, 4, 1]}", "64 bytes"),
    _entry("shape-negative", "negative sizes", f.entry(NORM, shape=[-4, -8]), "shape", _SIZES, "[-4, -8]"),
    _entry("shape-fraction", "a fractional size", f.entry(NORM, shape=[32.0]), "shape", _SIZES, "[32.0]"),
    _entry("shape-deep", "nine dimensions", f.entry(NORM, shape=[1] * 8 + [32]), "shape", _SIZES,
           "[1, 1, 1, 1, 1, 1, 1, 1, 32]"),
    _entry("dtype-unknown", "a dtype that the format has not", f.entry(NORM, dtype="Q4_K"),
           "dtype", f"one of {_DTYPES}", "'Q4_K'"),
    CheckpointCase(
        "header-entry", "an entry that is no object", f.header(lambda found: found.update({NORM: [0, 64]})),
        _wrong(f"{WEIGHTS}: {NORM}", "", "exactly dtype, shape and data_offsets", "[0, 64]"),
    ),
    CheckpointCase(
        "header-entry-surplus", "an entry with a key too many", f.entry(NORM, stride=1),
        _wrong(
            f"{WEIGHTS}: {NORM}", "", "exactly dtype, shape and data_offsets",
            "{'dtype': 'BF16', 'shape': [32], 'data_offsets': [105984, 106048], 'stride': 1}",
        ),
    ),
)  # fmt: skip


def _rename_experts(found: f.Json) -> None:
    for name in list(found):
        found[name.replace("block_sparse_moe", "ffn")] = found.pop(name)


TENSORS = (
    CheckpointCase(
        "tensor-missing", "a tensor is missing", f.drop(EXPERT),
        _wrong(MODEL, "tensors", "41, by config.json", f"40, and none named {EXPERT}"),
    ),
    CheckpointCase(
        "tensor-surplus", "a tensor too many", f.add("model.layers.2.input_layernorm.weight", "BF16", [32], bytes(64)),
        _wrong(
            MODEL, "tensors", "41, by config.json",
            "42, with no place for model.layers.2.input_layernorm.weight",
        ),
    ),
    CheckpointCase(
        "tensor-misnamed", "names of another family",
        f.header(_rename_experts),
        _wrong(
            "experts of layer 0", "",
            "tensors named as one of: block_sparse_moe.experts.N.w1/w2/w3; mlp.experts.gate_up_proj/down_proj",
            "neither",
        ),
    ),
    CheckpointCase(
        "tensor-control", "a tensor's name with a line break and an escape sequence",
        f.rename(NORM, "model\nnorm\x1b[31m"),
        _wrong(MODEL, "tensors", "41, by config.json", f"41, and none named {NORM}"),
    ),
    CheckpointCase(
        "tensor-transposed", "a matrix transposed", f.entry(EXPERT, shape=[48, 32]),
        _wrong(f"{WEIGHTS}: {EXPERT}", "shape", "[32, 48]", "[48, 32]"),
    ),
    CheckpointCase(
        "tensor-dtype", "one matrix in another dtype", f.entry(EXPERT, dtype="F16"),
        _wrong(f"{WEIGHTS}: {EXPERT}", "dtype", "BF16 (config.json)", "F16"),
    ),
    CheckpointCase(
        "tensor-integers", "one matrix of integers", f.entry(EXPERT, dtype="U16"),
        _wrong(f"{WEIGHTS}: {EXPERT}", "dtype", "BF16 (config.json)", "U16"),
    ),
    CheckpointCase(
        "tensor-tied", "a tied head that differs from the embeddings", config(tie_word_embeddings=True),
        _wrong(MODEL, "lm_head.weight", f"the values of {EMBEDDING}, since tie_word_embeddings is true", "others"),
    ),
)  # fmt: skip


def _outside(id: str, name: object) -> CheckpointCase:
    expected = "the plain name of a .safetensors file"
    return CheckpointCase(
        f"index-{id}", f"the index places a tensor in {name!r:.60}", f.placed(NORM, name),
        _wrong(f"{INDEX}: weight_map", NORM, expected, repr(name)),
    )  # fmt: skip


INDICES = (
    _outside("outside", "../other/model.safetensors"),
    _outside("absolute", "/etc/passwd.safetensors"),
    _outside("subfolder", "sub/model.safetensors"),
    _outside("backslash", "..\\model.safetensors"),
    _outside("nul", "model\0.safetensors"),
    _outside("pickle", "model.bin"),
    _outside("number", 7),
    CheckpointCase(
        "index-missing-shard", "the index names a file that is not there", f.in_order(f.shard, f.remove(SECOND)),
        _wrong(f"{MODEL}/{SECOND}", "", "a file", "nothing of that name"),
    ),
    CheckpointCase(
        "index-truncated-shard", "the second shard is cut", f.in_order(f.shard, f.resize(SECOND, -100)),
        _wrong(f"{MODEL}/{SECOND}", "file size", f"{ANY} bytes, as its header says", ANY),
    ),
    CheckpointCase(
        "index-wrong-shard", "the index places a tensor in another shard", f.placed(NORM, FIRST),
        _wrong(f"{INDEX}: weight_map", NORM, f"a tensor of {FIRST}", "none there"),
    ),
    CheckpointCase(
        "index-forgets", "a shard holds a tensor that the index does not know", f.placed(NORM, ABSENT),
        _wrong(f"{MODEL}/{SECOND}", "tensors", "those that the index places here", f"also {NORM}"),
    ),
    CheckpointCase(
        "index-duplicate", "a tensor in both shards",
        f.in_order(
            f.shard,
            lambda folder: _into(folder / FIRST, "lm_head.weight"),
        ),
        _wrong(f"{MODEL}/{FIRST}", "tensors", "those that the index places here", "also lm_head.weight"),
    ),
    CheckpointCase(
        "index-invents", "the index names a tensor that no file holds", f.placed("model.layers.9.x", SECOND),
        _wrong(f"{INDEX}: weight_map", "model.layers.9.x", f"a tensor of {SECOND}", "none there"),
    ),
    CheckpointCase(
        "index-empty", "an index without tensors", f.index({"weight_map": {}}),
        _wrong(INDEX, "weight_map", "an object with tensor names", "{}"),
    ),
    CheckpointCase(
        "index-without-map", "an index without weight_map", f.index({"metadata": {}}),
        _wrong(INDEX, "weight_map", "an object with tensor names", "None"),
    ),
    CheckpointCase(
        "index-broken", "an index that ends early", f.index('{"weight_map": {'),
        _wrong(
            INDEX, "", "a JSON object",
            "none: Expecting property name enclosed in double quotes: line 1 column 17 (char 16)",
        ),
    ),
    CheckpointCase(
        "index-huge", "an index of 1 GiB", f.in_order(f.shard, f.truncate_to(INDEX_NAME, 1 << 30)),
        _wrong(INDEX, "", "at most 67108864 bytes", "1073741824"),
    ),
)  # fmt: skip


def _into(path: Path, name: str) -> None:
    found, data = f.read_header(path)
    found[name] = {"dtype": "BF16", "shape": [1], "data_offsets": [len(data), len(data) + 2]}
    f.write_header(path, found, data + b"\0\0")


def _tokenizer(id: str, how: str, change: Callable[[f.Json], object], refusal: Refusal) -> CheckpointCase:
    return CheckpointCase(f"tokenizer-{id}", how, f.edit_tokenizer(change), refusal, Stage.TOKENIZER)


def _no_tokenizer(reason: str) -> Refusal:
    return _wrong(TOKENIZER, "", "a tokenizer", f"none: {reason}")


def _settings(id: str, how: str, refusal: Refusal, **fields: object) -> CheckpointCase:
    return CheckpointCase(
        f"tokenizer-{id}", how, f.edit("tokenizer_config.json", **fields), refusal, Stage.TOKENIZER
    )


TOKENIZERS = (
    CheckpointCase(
        "tokenizer-truncated", "a tokenizer.json that ends early", f.truncate_to("tokenizer.json", 1000),
        _no_tokenizer(ANY), Stage.TOKENIZER,
    ),
    CheckpointCase(
        "tokenizer-empty", "an empty object as tokenizer.json", f.write("tokenizer.json", "{}"),
        _no_tokenizer(ANY), Stage.TOKENIZER,
    ),
    CheckpointCase(
        "tokenizer-huge", "a tokenizer.json of 1 GiB", f.truncate_to("tokenizer.json", 1 << 30),
        _wrong(TOKENIZER, "", "at most 134217728 bytes", "1073741824"), Stage.TOKENIZER,
    ),
    CheckpointCase(
        "tokenizer-pipe", "tokenizer.json is a pipe", f.pipe("tokenizer.json"),
        _wrong(TOKENIZER, "", "a regular file", "something else"), Stage.TOKENIZER,
    ),
    _tokenizer("model", "a model that the library does not know",
               lambda raw: raw["model"].update(type="Oracle"), _no_tokenizer(ANY)),
    _tokenizer("panics", "a normalizer on which the library panics",
               lambda raw: raw.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
               _no_tokenizer(ANY)),
    _tokenizer("larger", "more tokens than the model has",
               lambda raw: raw["model"]["vocab"].update({f"new{i}": 300 + i for i in range(7)}),
               _wrong("tokenizer.json", "vocabulary", "at most vocab_size = 300 tokens", "307")),
    _tokenizer("sparse", "an id beyond the model's vocabulary",
               lambda raw: raw["model"]["vocab"].update({next(reversed(raw["model"]["vocab"])): 1 << 20}),
               _wrong("tokenizer.json", "vocabulary", "ids from 0 to 299", str(1 << 20))),
    _tokenizer("dropout", "merges that are dropped at random", lambda raw: raw["model"].update(dropout=0.5),
               _wrong("tokenizer.json", "model.dropout", "none, since equal texts must give equal ids", "0.5")),
    _settings("bos-number", "tokenizer_config.json: bos_token = 1",
              _wrong("tokenizer_config.json", "bos_token", "a string or an object with `content`", "1"), bos_token=1),
    _settings("add-bos-text", "tokenizer_config.json: add_bos_token = 'yes'",
              _wrong("tokenizer_config.json", "add_bos_token", "true or false", "'yes'"), add_bos_token="yes"),
    CheckpointCase(
        "tokenizer-settings", "a tokenizer_config.json that is no JSON", f.write("tokenizer_config.json", "bos: <s>"),
        _wrong(
            f"{MODEL}/tokenizer_config.json", "", "a JSON object",
            "none: Expecting value: line 1 column 1 (char 0)",
        ),
        Stage.TOKENIZER,
    ),
)  # fmt: skip


def _value(id: str, tensor: str, where: str, element: int, place: str, pattern: int) -> CheckpointCase:
    kind = "NaN" if pattern == _NAN else "Inf"
    return CheckpointCase(
        f"weights-{id}", f"{kind} in {tensor}", f.poke(tensor, element, pattern),
        _wrong(where, f"element {place}", "a finite value", f"{kind} (0x{pattern:04x})"), Stage.WEIGHTS,
    )  # fmt: skip


_LAYER = "model.layers.1"
VALUES = (
    _value("nan-embedding", EMBEDDING, "embedding", 9599, "[299, 31]", _NAN),
    _value("inf-norm", NORM, "final norm", 3, "[3]", _INF),
    _value("nan-attention", f"{_LAYER}.self_attn.k_proj.weight", "layer 1: k_proj", 0, "[0, 0]", _NAN),
    _value("inf-gate", f"{_LAYER}.block_sparse_moe.gate.weight", "layer 1: gate", 33, "[1, 1]", _INF),
    _value("nan-expert", EXPERT, "layer 1, expert 3: down", 47, "[0, 47]", _NAN),
)


def _template(id: str, how: str, content: bytes, refusal: Refusal) -> CheckpointCase:
    return CheckpointCase(
        f"template-{id}", how, f.write("chat_template.jinja", content), refusal, Stage.TEMPLATE
    )


_TEMPLATE = f"{MODEL}/chat_template.jinja"
TEMPLATES = (
    _template("syntax", "a chat template that is no Jinja", b"{% for %}",
              _wrong("chat template", "", "valid Jinja", f"the error: {ANY}")),
    _template("unknown-filter", "a chat template with a filter that there is not", b"{{ messages | shell }}",
              _wrong("chat template", "", "valid Jinja", "the error: No filter named 'shell'.")),
    _template("latin1", "a chat template that is no UTF-8", b"gr\xfc\xdfe",
              _wrong(_TEMPLATE, "", "a template", "text that is no UTF-8 (byte 2: invalid start byte)")),
    _template("huge", "a chat template of 2 MiB", b" " * (2 << 20),
              _wrong(_TEMPLATE, "", "at most 1048576 bytes", "2097152")),
    CheckpointCase(
        "template-unnamed", "tokenizer_config.json: chat_template = 7",
        f.in_order(f.remove("chat_template.jinja"), f.edit("tokenizer_config.json", chat_template=7)),
        _wrong("tokenizer_config.json", "chat_template", "a string or a list of named templates", "7"),
        Stage.TEMPLATE,
    ),
)  # fmt: skip

CASES = (*FOLDERS, *CONFIGS, *SAFETENSORS, *TENSORS, *INDICES, *TOKENIZERS, *TEMPLATES, *VALUES)
