"""Random models: same bytes for the same parameters, whatever the layout and shards, and refusals."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.errors import CheckpointError, InvalidInput
from colibri.models.checkpoint import Checkpoint
from colibri.models.dtypes import fp32_from_stored
from colibri.models.random_mixtral import MIXTRAL_8X7B, RandomMixtral, random_mixtral
from colibri.models.tensor_names import ExpertLayout
from colibri.models.tokenizer import Tokenizer

TINY = RandomMixtral(hidden=32, ffn=48, layers=1, experts=3, heads=4, kv_heads=2, vocab=300, max_positions=64)


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_the_same_bytes_at_each_call(tmp_path: Path, dtype: str) -> None:
    params = replace(TINY, dtype=dtype, sliding_window=16)
    assert digests(random_mixtral(tmp_path / "a", params)) == digests(random_mixtral(tmp_path / "b", params))
    other = random_mixtral(tmp_path / "c", replace(params, seed=1))
    assert digests(other)["model.safetensors"] != digests(tmp_path / "a")["model.safetensors"]


def test_the_bytes_are_fixed_for_good(tmp_path: Path) -> None:
    """Golden digests elsewhere stand on these weights; they do not depend on machine or NumPy."""
    random_mixtral(tmp_path / "m", TINY)
    weights = Checkpoint.open(tmp_path / "m")
    digest = hashlib.sha256()
    for array in (weights.embedding(), weights.lm_head(), weights.gate(0), weights.expert(0, 2).down):
        digest.update(array.tobytes())
    assert digest.hexdigest() == "bf10e4bb67e114d1ae63f88b8e05286401cb024f6f073223f3c3e3d2b4e05280"


def test_wide_tensors_have_the_intended_scale(tmp_path: Path) -> None:
    params = replace(TINY, hidden=256, ffn=512, heads=8, kv_heads=4, dtype="fp32", router_std=2.0, layers=2)
    weights = Checkpoint.open(random_mixtral(tmp_path / "m", params))
    expert = weights.expert(1, 0)
    for array, std in (
        (weights.embedding(), 1.0),
        (weights.lm_head(), 256**-0.5),
        (weights.gate(1), 2 * 256**-0.5),
        (weights.attention(0).k, 256**-0.5),
        (weights.attention(0).o, (256 * 4) ** -0.5),
        (expert.gate, 256**-0.5),
        (expert.down, (512 * 4) ** -0.5 / 0.6),
    ):
        assert array.std() == pytest.approx(std, rel=0.1)
    assert np.array_equal(weights.norms(0).post, np.ones(256, np.float32))


def test_bf16_is_the_rounded_fp32_model(tmp_path: Path) -> None:
    wide = Checkpoint.open(random_mixtral(tmp_path / "a", replace(TINY, dtype="fp32"))).expert(0, 1).up
    half = Checkpoint.open(random_mixtral(tmp_path / "b", replace(TINY, dtype="fp16"))).expert(0, 1).up
    bits = Checkpoint.open(random_mixtral(tmp_path / "c", TINY)).expert(0, 1).up
    assert np.array_equal(half, wide.astype(np.float16))
    assert (np.abs(fp32_from_stored(bits, "bf16") - wide) <= np.abs(wide) * 2**-8).all()


@pytest.mark.parametrize("vocab", [4, 17, 97, 259, 300, 1000])
def test_every_vocabulary_size_has_a_tokenizer(tmp_path: Path, vocab: int) -> None:
    folder = random_mixtral(tmp_path / "m", replace(TINY, vocab=vocab))
    tokenizer = Tokenizer.load(folder, Checkpoint.open(folder).config)
    assert tokenizer.vocab == vocab
    assert tokenizer.special == {0, 1, 2}
    text = "The quick brown fox, 7 Größe 日本\n"
    ids = tokenizer.encode(text)
    assert ids[0] == 1
    assert all(0 <= i < vocab for i in ids)
    if vocab >= 259:
        assert tokenizer.decode(ids) == text
        assert 0 not in ids
    assert isinstance(tokenizer.decode(range(vocab)), str)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"vocab": 3}, "vocab"),
        ({"dtype": "int8"}, "dtype"),
        ({"shard_mb": 0}, "shard_mb"),
        ({"heads": 0}, "heads"),
        ({"top_k": 4}, "num_experts_per_tok"),
        ({"kv_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 7}, "head_dim"),
        ({"sliding_window": 0}, "sliding_window"),
    ],
)
def test_impossible_parameters_are_named_and_nothing_is_written(
    tmp_path: Path, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises((InvalidInput, CheckpointError), match=f"{field}: expected"):
        random_mixtral(tmp_path / "m", replace(TINY, **fields))
    assert not (tmp_path / "m").exists()


def test_a_folder_with_content_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(InvalidInput, match="out: expected a new or empty folder"):
        random_mixtral(tmp_path, TINY)
    assert [file.name for file in tmp_path.iterdir()] == ["x"]


def test_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "colibri.models.random_mixtral", str(tmp_path / "m")]
    sizes = (
        "--hidden 32 --ffn 48 --layers 1 --experts 3 --heads 4 --kv-heads 2 --vocab 300 --max-positions 64"
    )
    done = subprocess.run(
        [*command, *sizes.split(), "--layout", "fused", "--sliding-window", "9", "--tied"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "B parameters" in done.stdout
    checkpoint = Checkpoint.open(tmp_path / "m")
    assert checkpoint.layout is ExpertLayout.FUSED
    assert (checkpoint.config.sliding_window, checkpoint.config.tied) == (9, True)
    raw = json.loads((tmp_path / "m" / "config.json").read_text())
    assert raw["num_local_experts"] == 3


def test_the_default_of_the_sparse_folder_is_mixtral_8x7b() -> None:
    shape = MIXTRAL_8X7B
    assert (shape.hidden, shape.ffn, shape.layers, shape.experts, shape.top_k) == (4096, 14336, 32, 8, 2)
