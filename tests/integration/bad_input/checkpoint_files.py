"""Checkpoints whose safetensors files, tensors or index are wrong."""

from __future__ import annotations

from pathlib import Path

from colibri.models.safetensors_file import MAX_HEADER_BYTES
from colibri.models.safetensors_writer import INDEX_NAME, SINGLE_NAME
from tests.integration.bad_input import folders as f
from tests.integration.bad_input.case import ANY, MODEL
from tests.integration.bad_input.checkpoint_case import CheckpointCase, wrong
from tests.integration.bad_input.folders import ABSENT, EXPERT, FIRST, NORM, SECOND, Damage, config

WEIGHTS = f"{MODEL}/{SINGLE_NAME}"
INDEX = f"{MODEL}/{INDEX_NAME}"
EMBEDDING = "model.embed_tokens.weight"
_DTYPES = (
    "F4, F6_E2M3, F6_E3M2, BOOL, U8, I8, F8_E4M3, F8_E5M2, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, U16, I16, F16, BF16, "
    "U32, I32, F32, U64, I64, F64, C64"
)
_SIZES = "at most 8 sizes below 2^63"
_OFFSETS = "two byte offsets below 2^63"


def _entry(id: str, how: str, damage: Damage, field: str, expected: str, got: str) -> CheckpointCase:
    """A wrong entry of the norm's in the header of the weights."""
    return CheckpointCase(
        f"header-{id}", how, damage, wrong(f"{WEIGHTS}: {NORM}" if field else WEIGHTS, field, expected, got)
    )


SAFETENSORS = (
    CheckpointCase(
        "weights-empty", "weights of 0 bytes", f.truncate_to(SINGLE_NAME, 0),
        wrong(WEIGHTS, "header length", "8 bytes", "a file of 0"),
    ),
    CheckpointCase(
        "weights-7-bytes", "weights of 7 bytes", f.truncate_to(SINGLE_NAME, 7),
        wrong(WEIGHTS, "header length", "8 bytes", "a file of 7"),
    ),
    CheckpointCase(
        "weights-lfs", "a Git LFS pointer in place of the weights",
        f.write(SINGLE_NAME, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
        wrong(WEIGHTS, "", "weights", "a pointer of Git LFS: fetch the file itself, as `git lfs pull` does"),
    ),
    CheckpointCase(
        "weights-html", "an error page in place of the weights", f.write(SINGLE_NAME, "<!DOCTYPE html>" * 9),
        wrong(WEIGHTS, "header length", f"at most {MAX_HEADER_BYTES}", "5789751444030890300"),
    ),
    CheckpointCase(
        "weights-truncated", "weights cut by a byte", f.resize(SINGLE_NAME, -1),
        wrong(WEIGHTS, "file size", f"{ANY} bytes, as its header says", ANY),
    ),
    CheckpointCase(
        "weights-oversized", "weights with a byte too many", f.resize(SINGLE_NAME, 1),
        wrong(WEIGHTS, "file size", f"{ANY} bytes, as its header says", ANY),
    ),
    CheckpointCase(
        "weights-header-only", "weights cut after the header", f.truncate_to(SINGLE_NAME, 5000),
        wrong(WEIGHTS, "file size", f"{ANY} bytes, as its header says", "5000"),
    ),
    CheckpointCase(
        "weights-pipe", "weights are a pipe without a writer", f.pipe(SINGLE_NAME),
        wrong(WEIGHTS, "", "a regular file", "something else"),
    ),
    CheckpointCase(
        "header-beyond-file", "a header longer than the file", f.raw_header(b"{}", 1 << 20),
        wrong(WEIGHTS, "header length", "at most 125250, since the file has 125258 bytes", "1048576"),
    ),
    CheckpointCase(
        "header-length-64-bits", "a header length of 2^64 - 1", f.raw_header(b"{}", (1 << 64) - 1),
        wrong(WEIGHTS, "header length", f"at most {MAX_HEADER_BYTES}", str((1 << 64) - 1)),
    ),
    CheckpointCase(
        "header-no-json", "a header that ends early", f.raw_header(b'{"a": '),
        wrong(f"{WEIGHTS}: header", "", "a JSON object", "none: Expecting value: line 1 column 7 (char 6)"),
    ),
    CheckpointCase(
        "header-list", "a list as header", f.raw_header(b"[]"),
        wrong(f"{WEIGHTS}: header", "", "a JSON object", "list"),
    ),
    CheckpointCase(
        "header-no-utf8", "a header that is no UTF-8", f.raw_header(b'{"\xff": 1}'),
        wrong(
            f"{WEIGHTS}: header", "", "a JSON object", "text that is no UTF-8 (byte 2: invalid start byte)"
        ),
    ),
    CheckpointCase(
        "header-duplicate", "a tensor twice in the header", f.raw_header(b'{"a": {}, "a": {}}'),
        wrong(f"{WEIGHTS}: header", "", "a JSON object", "none: the key 'a' occurs twice"),
    ),
    CheckpointCase(
        "header-nested", "a header that nests 100,000 lists", f.raw_header(b"[" * 100_000),
        wrong(f"{WEIGHTS}: header", "", "a JSON object", "one nested too deep"),
    ),
    CheckpointCase(
        "header-metadata", "metadata that is no text", f.header(lambda found: found.update(__metadata__={"a": 1})),
        wrong(WEIGHTS, "__metadata__", "an object of strings", "{'a': 1}"),
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
        wrong(
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
        wrong(f"{WEIGHTS}: {NORM}", "", "exactly dtype, shape and data_offsets", "[0, 64]"),
    ),
    CheckpointCase(
        "header-entry-surplus", "an entry with a key too many", f.entry(NORM, stride=1),
        wrong(
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
        wrong(MODEL, "tensors", "41, by config.json", f"40, and none named {EXPERT}"),
    ),
    CheckpointCase(
        "tensor-surplus", "a tensor too many", f.add("model.layers.2.input_layernorm.weight", "BF16", [32], bytes(64)),
        wrong(
            MODEL, "tensors", "41, by config.json",
            "42, with no place for model.layers.2.input_layernorm.weight",
        ),
    ),
    CheckpointCase(
        "tensor-misnamed", "names of another family",
        f.header(_rename_experts),
        wrong(
            MODEL, "experts of layer 0",
            "tensors named as one of: block_sparse_moe.experts.N.w1/w2/w3; mlp.experts.gate_up_proj/down_proj",
            "neither",
        ),
    ),
    CheckpointCase(
        "tensor-control", "a tensor's name with a line break and an escape sequence",
        f.rename(NORM, "model\nnorm\x1b[31m"),
        wrong(MODEL, "tensors", "41, by config.json", f"41, and none named {NORM}"),
    ),
    CheckpointCase(
        "tensor-transposed", "a matrix transposed", f.entry(EXPERT, shape=[48, 32]),
        wrong(f"{WEIGHTS}: {EXPERT}", "shape", "[32, 48]", "[48, 32]"),
    ),
    CheckpointCase(
        "tensor-dtype", "one matrix in another dtype", f.entry(EXPERT, dtype="F16"),
        wrong(f"{WEIGHTS}: {EXPERT}", "dtype", "BF16 (config.json)", "F16"),
    ),
    CheckpointCase(
        "tensor-integers", "one matrix of integers", f.entry(EXPERT, dtype="U16"),
        wrong(f"{WEIGHTS}: {EXPERT}", "dtype", "BF16 (config.json)", "U16"),
    ),
    CheckpointCase(
        "tensor-tied", "a tied head that differs from the embeddings", config(tie_word_embeddings=True),
        wrong(MODEL, "lm_head.weight", f"the values of {EMBEDDING}, since tie_word_embeddings is true", "others"),
    ),
)  # fmt: skip


def _outside(id: str, name: object) -> CheckpointCase:
    expected = "the plain name of a .safetensors file"
    return CheckpointCase(
        f"index-{id}", f"the index places a tensor in {name!r:.60}", f.placed(NORM, name),
        wrong(f"{INDEX}: weight_map", NORM, expected, repr(name)),
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
        wrong(f"{MODEL}/{SECOND}", "", "a file", "nothing of that name"),
    ),
    CheckpointCase(
        "index-truncated-shard", "the second shard is cut", f.in_order(f.shard, f.resize(SECOND, -100)),
        wrong(f"{MODEL}/{SECOND}", "file size", f"{ANY} bytes, as its header says", ANY),
    ),
    CheckpointCase(
        "index-wrong-shard", "the index places a tensor in another shard", f.placed(NORM, FIRST),
        wrong(f"{INDEX}: weight_map", NORM, f"a tensor of {FIRST}", "none there"),
    ),
    CheckpointCase(
        "index-forgets", "a shard holds a tensor that the index does not know", f.placed(NORM, ABSENT),
        wrong(f"{MODEL}/{SECOND}", "tensors", "those that the index places here", f"also {NORM}"),
    ),
    CheckpointCase(
        "index-duplicate", "a tensor in both shards",
        f.in_order(
            f.shard,
            lambda folder: _into(folder / FIRST, "lm_head.weight"),
        ),
        wrong(f"{MODEL}/{FIRST}", "tensors", "those that the index places here", "also lm_head.weight"),
    ),
    CheckpointCase(
        "index-invents", "the index names a tensor that no file holds", f.placed("model.layers.9.x", SECOND),
        wrong(f"{INDEX}: weight_map", "model.layers.9.x", f"a tensor of {SECOND}", "none there"),
    ),
    CheckpointCase(
        "index-empty", "an index without tensors", f.index({"weight_map": {}}),
        wrong(INDEX, "weight_map", "an object with tensor names", "{}"),
    ),
    CheckpointCase(
        "index-without-map", "an index without weight_map", f.index({"metadata": {}}),
        wrong(INDEX, "weight_map", "an object with tensor names", "None"),
    ),
    CheckpointCase(
        "index-broken", "an index that ends early", f.index('{"weight_map": {'),
        wrong(
            INDEX, "", "a JSON object",
            "none: Expecting property name enclosed in double quotes: line 1 column 17 (char 16)",
        ),
    ),
    CheckpointCase(
        "index-huge", "an index of 1 GiB", f.in_order(f.shard, f.truncate_to(INDEX_NAME, 1 << 30)),
        wrong(INDEX, "", "at most 67108864 bytes", "1073741824"),
    ),
)  # fmt: skip


def _into(path: Path, name: str) -> None:
    found, data = f.read_header(path)
    found[name] = {"dtype": "BF16", "shape": [1], "data_offsets": [len(data), len(data) + 2]}
    f.write_header(path, found, data + b"\0\0")
