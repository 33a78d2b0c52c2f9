"""Checkpoints from real files: layouts, shards, attacks on the index, complete checks, and the model hash."""

from __future__ import annotations

import json
import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.errors import CheckpointError, InvalidInput
from colibri.models.checkpoint import Checkpoint
from colibri.models.fingerprint import windows
from colibri.models.random_mixtral import RandomMixtral, random_mixtral, sparse_mixtral
from colibri.models.safetensors_file import SafetensorsFile
from colibri.models.safetensors_writer import INDEX_NAME, SINGLE_NAME, TensorSpec, write_file
from colibri.models.tensor_names import LM_HEAD, ExpertLayout

DATA = Path(__file__).parent / "data"
TINY = RandomMixtral(
    hidden=16, ffn=24, layers=2, experts=4, heads=4, kv_heads=2, vocab=40, max_positions=64, dtype="bf16"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return random_mixtral(tmp_path / "model", TINY)


def stored(folder: Path) -> dict[str, tuple[str, np.ndarray]]:
    """Name -> (dtype, values) of a single-file checkpoint."""
    file = SafetensorsFile(folder / SINGLE_NAME)
    names = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
    return {name: (names[info.dtype], file.array(name).copy()) for name, info in file.tensors.items()}


def store(folder: Path, tensors: dict[str, tuple[str, np.ndarray]], name: str = SINGLE_NAME) -> None:
    (folder / name).unlink(missing_ok=True)
    specs = [TensorSpec(key, dtype, values.shape) for key, (dtype, values) in tensors.items()]
    write_file(folder / name, specs, lambda spec: tensors[spec.name][1])


def reindex(folder: Path, change: Any) -> None:
    index = json.loads((folder / INDEX_NAME).read_text())
    change(index)
    (folder / INDEX_NAME).write_text(json.dumps(index))


def rewrite_config(folder: Path, **fields: object) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **fields}))


def test_a_folder_written_by_transformers() -> None:
    checkpoint = Checkpoint.open(DATA / "transformers_mixtral")
    config = checkpoint.config
    assert (config.hidden, config.ffn, config.head_dim, config.sliding_window) == (8, 12, 4, 16)
    assert checkpoint.layout is ExpertLayout.PER_EXPERT
    held = json.loads((DATA / "transformers_in_memory.json").read_text())
    for layer in range(config.layers):
        mlp = {
            key: held[f"model.layers.{layer}.mlp.{key}"] for key in ("gate.weight", "experts.gate_up_proj")
        }
        down = np.array(held[f"model.layers.{layer}.mlp.experts.down_proj"], np.uint16).reshape(2, 8, 12)
        gate_up = np.array(mlp["experts.gate_up_proj"], np.uint16).reshape(2, 24, 8)
        assert np.array_equal(checkpoint.gate(layer), np.array(mlp["gate.weight"], np.uint16).reshape(2, 8))
        for expert in range(config.experts):
            weights = checkpoint.expert(layer, expert)
            assert np.array_equal(weights.gate, gate_up[expert, :12])
            assert np.array_equal(weights.up, gate_up[expert, 12:])
            assert np.array_equal(weights.down, down[expert])


def test_the_in_memory_names_of_transformers_are_read_too(tmp_path: Path) -> None:
    source = Checkpoint.open(DATA / "transformers_mixtral")
    held = json.loads((DATA / "transformers_in_memory.json").read_text())
    (tmp_path / "config.json").write_text((DATA / "transformers_mixtral" / "config.json").read_text())
    tensors = {
        name: value
        for name, value in stored(DATA / "transformers_mixtral").items()
        if "block_sparse" not in name
    }
    for name, values in held.items():
        shape = (2, 8) if name.endswith("gate.weight") else (2, 24, 8) if "gate_up" in name else (2, 8, 12)
        tensors[name] = ("bf16", np.array(values, np.uint16).reshape(shape))
    store(tmp_path, tensors)
    fused = Checkpoint.open(tmp_path)
    assert fused.layout is ExpertLayout.FUSED
    assert fused.model_hash() == source.model_hash()


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("tied", [False, True])
def test_layouts_and_shards_hold_equal_weights(tmp_path: Path, dtype: str, tied: bool) -> None:
    params = replace(TINY, dtype=dtype, tied=tied, hidden=64, ffn=96, vocab=2000)
    one = Checkpoint.open(random_mixtral(tmp_path / "a", params))
    fused = replace(params, layout=ExpertLayout.FUSED, shard_mb=1, layers=2)
    two = Checkpoint.open(random_mixtral(tmp_path / "b", fused))
    itemsize = 4 if dtype == "fp32" else 2
    if dtype == "fp32":
        assert (tmp_path / "b" / INDEX_NAME).exists(), "expected several shards"
    assert one.config == two.config
    assert one.nbytes == two.nbytes
    assert one.expert_nbytes == 3 * 64 * 96 * itemsize
    for get in (Checkpoint.embedding, Checkpoint.final_norm, Checkpoint.lm_head):
        assert np.array_equal(get(one), get(two))
    assert one.embedding().shape == (2000, 64)
    assert np.array_equal(one.lm_head(), one.embedding()) is tied
    for layer in range(2):
        assert np.array_equal(one.gate(layer), two.gate(layer))
        assert one.gate(layer).shape == (4, 64)
        for part in ("q", "k", "v", "o"):
            assert np.array_equal(getattr(one.attention(layer), part), getattr(two.attention(layer), part))
        assert one.attention(layer).k.shape == (32, 64)
        for expert in range(4):
            a, b = one.expert(layer, expert), two.expert(layer, expert)
            assert a.gate.shape == a.up.shape == (96, 64)
            assert a.down.shape == (64, 96)
            for part in ("gate", "up", "down"):
                x, y = getattr(a, part), getattr(b, part)
                assert x.dtype == y.dtype
                assert np.array_equal(x, y)
                assert y.flags.c_contiguous
    assert one.model_hash() == two.model_hash()


def test_indices_out_of_range_are_refused(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    for layer in (-1, 2):
        for call in (checkpoint.norms, checkpoint.attention, checkpoint.gate):
            with pytest.raises(InvalidInput, match=f"layer: expected 0 to 1, got {layer}"):
                call(layer)
        with pytest.raises(InvalidInput, match="layer"):
            checkpoint.expert(layer, 0)
    with pytest.raises(InvalidInput, match="expert: expected 0 to 3, got 4"):
        checkpoint.expert(0, 4)


def test_the_index_is_the_only_authority(tmp_path: Path) -> None:
    folder = random_mixtral(tmp_path / "m", replace(TINY, hidden=64, ffn=512, layers=4, shard_mb=1))
    before = Checkpoint.open(folder).model_hash()
    (folder / "consolidated.safetensors").write_bytes(b"not a weight file")
    (folder / SINGLE_NAME).write_bytes(b"nor this")
    (folder / "model-00099-of-00099.safetensors").write_bytes(b"nor that")
    assert Checkpoint.open(folder).model_hash() == before
    shard = sorted(folder.glob("model-00001*"))[0]
    shard.rename(folder / "oddly named.safetensors")
    with pytest.raises(CheckpointError, match="expected a file, got nothing of that name"):
        Checkpoint.open(folder)

    def rename(index: dict[str, Any]) -> None:
        for tensor, name in index["weight_map"].items():
            if name == shard.name:
                index["weight_map"][tensor] = "oddly named.safetensors"

    reindex(folder, rename)
    assert Checkpoint.open(folder).model_hash() == before


@pytest.mark.parametrize(
    "name",
    [
        "../model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..\\model.safetensors",
        "C:model.safetensors",
        "..",
        ".safetensors",
        "",
        "model.bin",
        "a\0.safetensors",
        "x" * 300 + ".safetensors",
        7,
        None,
        ["model.safetensors"],
    ],
)
def test_an_index_cannot_point_outside(tmp_path: Path, name: object) -> None:
    folder = random_mixtral(tmp_path / "m", replace(TINY, hidden=64, ffn=512, layers=4, shard_mb=1))
    reindex(folder, lambda index: index["weight_map"].update({"model.norm.weight": name}))
    with pytest.raises(CheckpointError, match=r"weight_map: model.norm.weight: expected the plain name"):
        Checkpoint.open(folder)


def test_an_index_that_lies_is_refused(tmp_path: Path) -> None:
    folder = random_mixtral(tmp_path / "m", replace(TINY, hidden=64, ffn=512, layers=4, shard_mb=1))
    index = folder / INDEX_NAME
    good = index.read_text()
    first, last = sorted(set(json.loads(good)["weight_map"].values()))[
        :: len(set(json.loads(good)["weight_map"].values())) - 1
    ]
    reindex(folder, lambda i: i["weight_map"].update({"model.norm.weight": first}))
    with pytest.raises(
        CheckpointError, match=f"model.norm.weight: expected a tensor of {first}, got none there"
    ):
        Checkpoint.open(folder)
    index.write_text(good)
    reindex(folder, lambda i: i["weight_map"].pop("model.norm.weight"))
    with pytest.raises(
        CheckpointError,
        match=f"{last}: tensors: expected those that the index places here, got also model.norm",
    ):
        Checkpoint.open(folder)
    for text in (
        "",
        "[]",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": []}',
        '{"weight_map": {"a": 1, "a": 2}}',
    ):
        index.write_text(text)
        with pytest.raises(CheckpointError, match=INDEX_NAME):
            Checkpoint.open(folder)


def test_missing_surplus_and_misshapen_tensors(folder: Path) -> None:
    tensors = stored(folder)
    expert = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    store(folder, {name: value for name, value in tensors.items() if name != expert})
    with pytest.raises(
        CheckpointError, match=rf"expected 41, by config.json, got 40, and none named {expert}$"
    ):
        Checkpoint.open(folder)
    store(folder, {**tensors, "model.layers.2.input_layernorm.weight": ("bf16", np.zeros(16, np.uint16))})
    with pytest.raises(
        CheckpointError, match=r"got 42, with no place for model.layers.2.input_layernorm.weight$"
    ):
        Checkpoint.open(folder)
    store(folder, {**tensors, expert: ("bf16", tensors[expert][1].T)})
    with pytest.raises(CheckpointError, match=rf"{expert}: shape: expected \[16, 24\], got \[24, 16\]"):
        Checkpoint.open(folder)
    store(folder, {**tensors, expert: ("fp16", tensors[expert][1].view(np.float16))})
    with pytest.raises(CheckpointError, match=rf"{expert}: dtype: expected BF16 \(config.json\), got F16"):
        Checkpoint.open(folder)
    table = "model.layers.0.self_attn.rotary_emb.inv_freq"
    store(folder, {**tensors, table: ("fp32", np.zeros(2, np.float32))})
    Checkpoint.open(folder)


def test_a_config_that_disagrees_with_the_files(folder: Path) -> None:
    rewrite_config(folder, num_local_experts=5)
    with pytest.raises(
        CheckpointError,
        match=r"none named model.layers.0.block_sparse_moe.experts.4.w1.weight, .* and others$",
    ):
        Checkpoint.open(folder)
    rewrite_config(folder, num_local_experts=4, torch_dtype="float32")
    with pytest.raises(CheckpointError, match="dtype: expected F32"):
        Checkpoint.open(folder)
    rewrite_config(folder, torch_dtype=None)
    assert Checkpoint.open(folder).config.dtype == "bf16"


def test_other_families_and_empty_folders_are_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(
        CheckpointError, match="expected a folder with a checkpoint, got nothing of that name"
    ):
        Checkpoint.open(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"config.json: expected a file, got nothing of that name"):
        Checkpoint.open(tmp_path)
    (folder / SINGLE_NAME).rename(folder / "weights.safetensors")
    with pytest.raises(CheckpointError, match=f"expected {INDEX_NAME} or {SINGLE_NAME}, got neither"):
        Checkpoint.open(folder)
    (folder / "weights.safetensors").rename(folder / SINGLE_NAME)
    tensors = {name.replace("block_sparse_moe", "ffn"): value for name, value in stored(folder).items()}
    store(folder, tensors)
    with pytest.raises(CheckpointError, match="experts of layer 0: expected tensors named as one of"):
        Checkpoint.open(folder)


def test_a_tied_head_may_be_there_twice_if_it_is_equal(tmp_path: Path) -> None:
    folder = random_mixtral(tmp_path / "m", replace(TINY, tied=True))
    tensors = stored(folder)
    assert LM_HEAD not in tensors
    before = Checkpoint.open(folder).model_hash()
    dtype, head = tensors["model.embed_tokens.weight"]
    store(folder, {**tensors, LM_HEAD: (dtype, head)})
    assert Checkpoint.open(folder).model_hash() == before
    other = head.copy()
    other[-1, -1] ^= 1
    store(folder, {**tensors, LM_HEAD: (dtype, other)})
    with pytest.raises(
        CheckpointError, match=r"lm_head.weight: expected the values of model.embed_tokens.weight"
    ):
        Checkpoint.open(folder)


def test_the_hash_sees_one_bit_of_any_tensor_and_any_field(folder: Path) -> None:
    tensors = stored(folder)
    seen = {Checkpoint.open(folder).model_hash()}
    for name, (dtype, values) in tensors.items():
        other = values.copy()
        other.reshape(-1)[values.size // 2] ^= 1
        store(folder, {**tensors, name: (dtype, other)})
        seen.add(Checkpoint.open(folder).model_hash())
    store(folder, tensors)
    for field, value in (
        ("rms_norm_eps", 1e-6),
        ("rope_theta", 1e4),
        ("sliding_window", 8),
        ("eos_token_id", 3),
    ):
        rewrite_config(folder, **{field: value})
        seen.add(Checkpoint.open(folder).model_hash())
    assert len(seen) == 1 + len(tensors) + 4


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 5000, 1 << 20, 352321536])
def test_windows_lie_inside_and_reach_both_ends(size: int) -> None:
    spans = windows(100, 100 + size)
    assert spans[0][0] == 100
    assert sum(spans[-1]) == 100 + size
    assert all(at >= 100 and at + length <= 100 + size for at, length in spans)
    assert sum(length for _, length in spans) == min(size, 4096)


def test_the_demo_model_opens_and_hashes_at_once(demo_model: Path) -> None:
    checkpoint = Checkpoint.open(demo_model)
    assert checkpoint.config.tied
    assert checkpoint.generation.eos == (2,)
    assert len(checkpoint.model_hash()) == 32
    assert checkpoint.lm_head() is not None
    assert np.array_equal(checkpoint.lm_head()[:8], checkpoint.embedding()[:8])


def touched() -> int:
    """Upper bound of the bytes that this process has read, by calls or through mappings (64 KiB a fault)."""
    by_calls = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int(by_calls) + (usage.ru_minflt + usage.ru_majflt) * (64 << 10)


def test_a_sparse_folder_of_mixtral_8x7b_is_not_read(tmp_path: Path) -> None:
    folder = sparse_mixtral(tmp_path / "m")
    on_disk = sum(os.stat(file).st_blocks * 512 for file in folder.iterdir())
    apparent = sum(file.stat().st_size for file in folder.iterdir())
    assert apparent > 93_000_000_000
    assert on_disk < 50_000_000
    before = touched()
    checkpoint = Checkpoint.open(folder)
    assert (checkpoint.nbytes, checkpoint.expert_nbytes) == (93_405_585_408, 352_321_536)
    assert checkpoint.expert(31, 7).down.shape == (4096, 14336)
    assert len(checkpoint.model_hash()) == 32
    assert touched() - before < 200_000_000
