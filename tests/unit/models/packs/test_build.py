"""Packing: what it refuses, and that errors name the weight."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from colibri.errors import CheckpointError
from colibri.kernels.factory import make_backend
from colibri.kernels.reference.quantised import dequantize_expert
from colibri.models.checkpoint import Checkpoint
from colibri.models.dtypes import fp32_from_stored
from colibri.models.packs.build import build_pack
from colibri.models.packs.pack import Pack
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.models.safetensors_file import SafetensorsFile
from colibri.models.weight_format import WeightFormat
from tests.support.packs import as_format, pack

SMALL = RandomMixtral(
    hidden=40,
    ffn=24,
    layers=2,
    experts=3,
    heads=2,
    kv_heads=1,
    vocab=50,
    max_positions=64,
    seed=8,
    dtype="fp32",
)
PLAIN = WeightFormat("bf16")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return random_mixtral(tmp_path / "model", SMALL)


def poke(model: Path, tensor: str, element: int, value: float) -> None:
    path = model / "model.safetensors"
    at = SafetensorsFile(path).tensors[tensor].begin + 4 * element
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(np.float32(value).tobytes())


@pytest.mark.parametrize("experts", ["bf16", "fp32", "int8g32", "int4g128"])
@pytest.mark.parametrize(
    ("tensor", "value", "message"),
    [
        (
            "block_sparse_moe.experts.2.w3.weight",
            np.nan,
            r"safetensors: model.layers.1.block_sparse_moe.experts.2.w3.weight: element \[1, 0\]: expected a finite",
        ),
        ("block_sparse_moe.experts.0.w2.weight", np.inf, r"experts.0.w2.weight: element \[1, 16\]"),
        ("self_attn.k_proj.weight", -np.inf, r"self_attn.k_proj.weight: element \[1, 0\]"),
        ("block_sparse_moe.gate.weight", np.nan, r"block_sparse_moe.gate.weight: element \[1, 0\]"),
        ("post_attention_layernorm.weight", np.nan, r"post_attention_layernorm.weight: element \[39\]"),
    ],
)
def test_weights_that_are_not_finite(
    model: Path, tmp_path: Path, experts: str, tensor: str, value: float, message: str
) -> None:
    poke(model, f"model.layers.1.{tensor}", 39 if "norm" in tensor else 40, value)
    with pytest.raises(CheckpointError, match=message):
        pack(model, tmp_path / "out", experts, "fp32")
    assert not (tmp_path / "out").exists()


def test_what_fp16_cannot_hold(model: Path, tmp_path: Path) -> None:
    poke(model, "model.layers.0.block_sparse_moe.experts.1.w1.weight", 3, -70000.0)
    with pytest.raises(
        CheckpointError, match=r"experts.1: largest weight: expected at most 65504, for fp16, got 70000"
    ):
        pack(model, tmp_path / "out", "fp16", "fp32")
    pack(model, tmp_path / "out", "bf16", "fp32")


def test_names_that_are_taken_and_a_second_process(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match=r"out: expected a name that is free, got something"):
        pack(model, tmp_path / "out", "bf16")
    unfinished = tmp_path / "other.unfinished"
    unfinished.mkdir()
    lock = os.open(unfinished / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match=r"expected no other process that makes this pack, got one"):
            pack(model, tmp_path / "other", "bf16")
    finally:
        os.close(lock)
    pack(model, tmp_path / "other", "bf16")


def _stop_after(count: int) -> Callable[[int, int], None]:
    calls = 0

    def progress(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls > count:
            raise KeyboardInterrupt

    return progress


def test_stopped_anywhere_and_gone_on_with(model: Path, tmp_path: Path) -> None:
    checkpoint, kind = Checkpoint.open(model), as_format("int8g32")
    straight = build_pack(checkpoint, tmp_path / "straight", kind, PLAIN)
    for stop in (1, 2, 9, 18):
        out = tmp_path / f"out{stop}"
        with pytest.raises(KeyboardInterrupt):
            build_pack(checkpoint, out, kind, PLAIN, progress=_stop_after(stop))
        assert not out.exists()
        report = build_pack(checkpoint, out, kind, PLAIN)
        assert (report.pack_hash, report.experts_error) == (straight.pack_hash, straight.experts_error)
        assert report.kept == stop
        assert sorted(path.name for path in out.iterdir()) == sorted(
            path.name for path in (tmp_path / "straight").iterdir()
        )


def test_an_unfinished_pack_of_another_recipe_is_thrown_away(model: Path, tmp_path: Path) -> None:
    checkpoint, out = Checkpoint.open(model), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        build_pack(checkpoint, out, as_format("int8g32"), PLAIN, progress=_stop_after(9))
    assert build_pack(checkpoint, out, as_format("int8g64"), PLAIN).kept == 0


@pytest.mark.parametrize("damage", ["torn", "garbage", "gone", "short"])
def test_a_damaged_journal_or_file_is_made_again(model: Path, tmp_path: Path, damage: str) -> None:
    checkpoint, out, kind = Checkpoint.open(model), tmp_path / "out", as_format("int4g32")
    with pytest.raises(KeyboardInterrupt):
        build_pack(checkpoint, out, kind, PLAIN, progress=_stop_after(17))
    folder = tmp_path / "out.unfinished"
    if damage == "torn":
        journal = folder / "journal.jsonl"
        journal.write_bytes(journal.read_bytes()[:-30])
    elif damage == "garbage":
        journal = folder / "journal.jsonl"
        first, second, *rest = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join([bytes(len(first) - 1) + b"\n", b"[]\n", b"{}\n", *rest, second]))
    elif damage == "gone":
        (folder / "dense.safetensors").unlink()
    else:
        os.truncate(folder / "experts-00000.safetensors", 5000)
    build_pack(checkpoint, out, kind, PLAIN)
    straight = build_pack(checkpoint, tmp_path / "straight", kind, PLAIN)
    assert Pack.open(out).pack_hash == straight.pack_hash
    for file in Pack.open(out).manifest.weights:
        assert (out / file).read_bytes() == (tmp_path / "straight" / file).read_bytes()


def test_the_error_in_the_report_is_the_error(model: Path, tmp_path: Path) -> None:
    checkpoint, kind = Checkpoint.open(model), as_format("int4g32")
    report = build_pack(checkpoint, tmp_path / "out", kind, WeightFormat("fp32"))
    found, backend = Pack.open(tmp_path / "out"), make_backend("reference")
    lost = total = 0.0
    for layer in range(SMALL.layers):
        for expert in range(SMALL.experts):
            weights = checkpoint.expert(layer, expert)
            got = dequantize_expert(found.expert(layer, expert, backend))
            for part, values in zip((weights.gate, weights.up, weights.down), got, strict=True):
                exact = fp32_from_stored(part, "fp32").astype(np.float64)
                lost += float(((values - exact) ** 2).sum())
                total += float((exact**2).sum())
    assert report.experts_error == pytest.approx((lost / total) ** 0.5, rel=1e-4)
    assert report.dense_error == 0
    assert report.worst_expert[1] >= report.experts_error
