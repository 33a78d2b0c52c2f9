"""Packs: what is written can be read; what is damaged or lies is refused, by name, before memory is taken."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from colibri.errors import CheckpointError, InvalidInput
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from colibri.models.checkpoint import Checkpoint
from colibri.models.config import MixtralConfig
from colibri.models.model import check_mode, default_mode, engine_numerics, open_model
from colibri.models.packs.pack import Pack
from colibri.models.packs.plan import PAGE, count_blobs, expert_name, plan_files
from colibri.models.weight_format import WeightFormat
from tests.support.packs import as_format, pack

BACKEND = make_backend("reference")


@pytest.fixture(scope="module")
def made(tiny_mixtral: Path, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return pack(tiny_mixtral, tmp_path_factory.mktemp("pack") / "int4", "int4g32", "int8g32")


@pytest.fixture
def copy(made: Pack, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made.folder, tmp_path / "copy"))


@pytest.mark.parametrize("experts", ["bf16", "fp16", "fp32", "int8g128", "int4g64"])
def test_every_expert_is_what_packing_it_gives(tiny_mixtral: Path, tmp_path: Path, experts: str) -> None:
    found = pack(tiny_mixtral, tmp_path / "pack", experts)
    kind = as_format(experts)
    weights = Checkpoint.open(tiny_mixtral).expert(1, 3)
    parts = (weights.gate, weights.up, weights.down)
    if kind.quantised:
        expected = BACKEND.quantize_expert(*parts, kind.dtype, kind.group)
    else:
        widened = [(part.astype(np.uint32) << np.uint32(16)).view(np.float32) for part in parts]
        stored = {"bf16": list(parts), "fp16": [part.astype(np.float16) for part in widened], "fp32": widened}
        gate, up, down = stored[experts]
        expected = BACKEND.pack_expert(gate, up, down, ComputeMode.FP32)
    for backend in (BACKEND, make_backend("cpu", threads=1)):
        got = found.expert(1, 3, backend)
        assert (got.dtype, got.hidden, got.ffn, got.group) == (
            expected.dtype,
            expected.hidden,
            expected.ffn,
            expected.group,
        )
        np.testing.assert_array_equal(got.data, expected.data)
        assert got.data.ctypes.data % 64 == 0
        np.testing.assert_array_equal(
            found.gate(0, backend).data,
            BACKEND.pack_linear(Checkpoint.open(tiny_mixtral).gate(0), ComputeMode.FP32).data,
        )


def test_files_are_safetensors_of_whole_pages(made: Pack) -> None:
    for file in plan_files(made.config, made.manifest.experts, made.manifest.dense):
        path = made.folder / file.name
        with safe_open(path, "numpy") as opened:
            assert set(opened.keys()) == {blob.name for blob in file.blobs}
            for blob in file.blobs:
                raw = opened.get_tensor(blob.name).tobytes()
                entry = made.manifest.blobs[blob.name]
                assert (entry.offset % PAGE, len(raw) % PAGE) == (0, 0)
                assert raw == path.read_bytes()[entry.offset : entry.offset + entry.bytes]
                assert hashlib.sha256(raw).hexdigest() == entry.sha256
                assert not any(raw[blob.used :])


def test_threads_and_folders_change_no_byte(made: Pack, tiny_mixtral: Path, tmp_path: Path) -> None:
    again = pack(tiny_mixtral, tmp_path / "other name", "int4g32", "int8g32", threads=3)
    assert again.pack_hash == made.pack_hash
    for file in made.manifest.weights:
        assert (again.folder / file).read_bytes() == (made.folder / file).read_bytes()


def test_ids_tell_formats_apart(made: Pack) -> None:
    assert open_model(made.folder).pack_hash == made.pack_hash
    assert default_mode(made) is ComputeMode.BF16
    assert engine_numerics(made, "cpu", ComputeMode.BF16).id.startswith(
        "cpu/int8/w=int4g32/wire=bf16/any/r1+dense=int8g32/kv=bf16"
    )
    check_mode(made, ComputeMode.BF16)


@given(
    st.builds(
        MixtralConfig,
        hidden=st.integers(1, 300),
        ffn=st.integers(1, 300),
        layers=st.integers(1, 4),
        experts=st.integers(1, 9),
        top_k=st.just(1),
        heads=st.integers(1, 4),
        kv_heads=st.just(1),
        head_dim=st.sampled_from([2, 6, 64]),
        vocab=st.integers(1, 700),
        rms_eps=st.just(1e-5),
        rope_theta=st.just(1e6),
        max_positions=st.just(64),
        sliding_window=st.none(),
        tied=st.booleans(),
        dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
        bos=st.none(),
        eos=st.just(()),
    ),
    st.sampled_from(["bf16", "fp32", "int8g32", "int4g128"]),
    st.sampled_from(["fp16", "int8g64"]),
)
def test_plans_have_no_gap_and_no_overlap(config: MixtralConfig, experts: str, dense: str) -> None:
    files = list(plan_files(config, as_format(experts), as_format(dense)))
    assert sum(len(file.blobs) for file in files) == count_blobs(config)
    for file in files:
        at = len(file.head)
        for blob in file.blobs:
            assert (blob.offset, blob.offset % PAGE, blob.nbytes % PAGE) == (at, 0, 0)
            assert blob.used <= blob.nbytes < blob.used + PAGE
            at += blob.nbytes
        assert at == file.nbytes


@pytest.mark.parametrize(
    ("dtype", "group", "message"),
    [
        ("int3", 32, "dtype: expected one of bf16"),
        ("int4", 0, "group: expected 32 or 64 or 128 with int4, got 0"),
        ("int8", 48, "group: expected 32 or 64 or 128 with int8, got 48"),
        ("bf16", 32, "group: expected 0 with bf16, got 32"),
    ],
)
def test_formats_that_are_none(dtype: str, group: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        WeightFormat(dtype, group)


def test_a_damaged_blob_is_found_when_it_is_loaded(copy: Path) -> None:
    entry = Pack.open(copy).manifest.blobs["layers.1.experts.2"]
    path = copy / entry.file
    raw = bytearray(path.read_bytes())
    raw[entry.offset + 100] ^= 1
    path.write_bytes(raw)
    found = Pack.open(copy)
    found.expert(1, 1, BACKEND)
    with pytest.raises(CheckpointError, match=rf"layers\.1\.experts\.2: xxh3: expected {entry.xxh3}, got"):
        found.expert(1, 2, BACKEND)


#: Of the tiny model: blob, byte of it, what is found there. Scales of a group: 64 bytes, its numbers 512 in int4 and
#: 1024 in int8; gate_up [192, 64] has 6 panels of 2 groups, down [64, 96] 2 panels of 3.
SCALES = [
    ("layers.1.experts.2", 0, r"gate: scale \[0, 0\]"),
    ("layers.1.experts.2", 1152 + 576 + 38, r"up: scale \[19, 1\]"),
    ("layers.1.experts.2", 6 * 1152, r"down: scale \[0, 0\]"),
    ("layers.1.experts.2", 6 * 1152 + 1728 + 2 * 576 + 62, r"down: scale \[63, 2\]"),
    ("layers.1.qkv", 2 * 2176 + 1088 + 10, r"scale \[69, 1\]"),
]


@pytest.mark.parametrize(("name", "at", "message"), SCALES)
@pytest.mark.parametrize(
    ("bits", "got"), [(0x7FC0, "NaN"), (0xFF81, "NaN"), (0x7F80, "Inf"), (0xFF80, "Inf")]
)
def test_scales_that_are_not_finite_under_a_right_checksum(
    copy: Path, name: str, at: int, message: str, bits: int, got: str
) -> None:
    manifest = Pack.open(copy).manifest
    entry = manifest.blobs[name]
    raw = bytearray((copy / entry.file).read_bytes())
    raw[entry.offset + at : entry.offset + at + 2] = bits.to_bytes(2, "little")
    (copy / entry.file).write_bytes(raw)
    blob = raw[entry.offset : entry.offset + entry.bytes]
    digests = {"sha256": hashlib.sha256(blob).hexdigest(), "xxh3": xxhash.xxh3_128(blob).hexdigest()}
    _edit(copy, lambda document: document["blobs"][name].update(digests))
    found = Pack.open(copy)
    expected = rf"{re.escape(name)}: {message}: expected a finite value, got {got} \(0x{bits:04x}\)"

    def read() -> object:
        return found.expert(1, 2, BACKEND) if "experts" in name else found.matrix(name, BACKEND)

    with pytest.raises(CheckpointError, match=expected):
        read()


def _edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "pack.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


EXPERT = "layers.0.experts.1"
LIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another layout": (
        lambda m: m.update(layout_version=0),
        r"layout_version: expected 1, got 0: make the pack anew with `colibri pack MODEL OUT --dtype int4 --group 32"
        r" --dense-dtype int8`",
    ),
    "another version": (
        lambda m: m.update(version=9),
        r"version: expected 1, got 9: make the pack anew with",
    ),
    "no pack": (lambda m: m.update(format="x"), r"format: expected 'colibri-pack', got 'x'"),
    "a group that is none": (
        lambda m: m["experts"].update(group=48),
        r"experts: group: expected 32 or 64 or 128 with int4, got 48",
    ),
    "a group of another kind": (lambda m: m["experts"].update(group="32"), r"experts: group: expected"),
    "another group": (
        lambda m: m["experts"].update(group=64),
        r"experts-00000.safetensors: (bytes|head_sha256): expected",
    ),
    "another dtype": (
        lambda m: m.update(experts={"dtype": "int8", "group": 32}),
        r"experts-00000.safetensors: bytes: expected",
    ),
    "an unknown dtype": (lambda m: m["dense"].update(dtype="nf4"), r"dense: dtype: expected one of bf16"),
    "a dtype of one expert": (
        lambda m: m["blobs"][EXPERT].update(dtype="int8"),
        r"layers.0.experts.1: fields: expected bytes, file, offset, sha256, xxh3, got also dtype",
    ),
    "overlapping": (
        lambda m: m["blobs"][EXPERT].update(offset=m["blobs"]["layers.0.experts.0"]["offset"]),
        r"layers.0.experts.1: offset: expected \d+, by config.json and the formats, got 4096",
    ),
    "beyond the file": (lambda m: m["blobs"][EXPERT].update(offset=1 << 40), r"offset: expected \d+"),
    "a length that is huge": (lambda m: m["blobs"][EXPERT].update(bytes=1 << 60), r"bytes: expected \d+"),
    "a negative length": (
        lambda m: m["blobs"][EXPERT].update(bytes=-1),
        r"layers.0.experts.1: bytes: expected an integer from 0 on, got -1",
    ),
    "another file": (
        lambda m: m["blobs"][EXPERT].update(file="experts-00001.safetensors"),
        r"file: expected experts-00000.safetensors, by config.json and the formats, got experts-00001",
    ),
    "a path": (
        lambda m: m["texts"].update({"../secret": m["texts"]["config.json"]}),
        r"texts: expected plain file names, got '\.\./secret'",
    ),
    "a missing blob": (lambda m: m["blobs"].pop(EXPERT), r"blobs: expected \d+, by config.json, got \d+"),
    "a renamed blob": (
        lambda m: m["blobs"].update({"layers.0.experts.99": m["blobs"].pop(EXPERT)}),
        r"blobs: expected layers.0.experts.1 among them, got none",
    ),
    "a missing file": (lambda m: m["weights"].pop("dense.safetensors"), r"weights: expected \d+ files"),
    "a file of another size": (
        lambda m: m["weights"]["dense.safetensors"].update(bytes=1),
        r"weights: dense.safetensors: bytes: expected \d+, by config.json and the formats, got 1",
    ),
    "another text": (
        lambda m: m["texts"]["config.json"].update(sha256="0" * 64),
        r"config.json: sha256: expected 0{64} \(pack.json\), got [0-9a-f]{64}",
    ),
    "no config": (lambda m: m["texts"].pop("config.json"), r"texts: expected config.json among them"),
    "another source": (
        lambda m: m.update(source_dtype="fp32"),
        r"source_dtype: expected bf16, by config.json, got fp32",
    ),
    "a short hash": (lambda m: m.update(model_hash="ab"), r"model_hash: expected 32 hexadecimal digits"),
    "a bad digest": (lambda m: m["blobs"][EXPERT].update(xxh3="z" * 32), r"xxh3: expected 32 hexadecimal"),
    "a surplus field": (lambda m: m.update(note="hi"), r"fields: expected .*, got also note"),
    "blobs that are a list": (lambda m: m.update(blobs=[]), r"blobs: expected an object, got \[\]"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies(copy: Path, lie: str) -> None:
    change, message = LIES[lie]
    _edit(copy, change)
    with pytest.raises(CheckpointError, match=message):
        Pack.open(copy)


def test_truncated_files(copy: Path) -> None:
    for name in (
        "experts-00001.safetensors",
        "dense.safetensors",
        "tokenizer.json",
        "config.json",
        "pack.json",
    ):
        path = copy / name
        raw = path.read_bytes()
        for size in (0, 7, 100, len(raw) // 2, len(raw) - 1):
            path.write_bytes(raw[:size])
            with pytest.raises(CheckpointError, match=name):
                Pack.open(copy)
        path.write_bytes(raw)
    Pack.open(copy)


@given(where=st.integers(0, 1 << 30), value=st.integers(1, 255), data=st.data())
def test_any_changed_byte_is_refused_or_changes_no_weight(
    made: Pack, tmp_path_factory: pytest.TempPathFactory, where: int, value: int, data: st.DataObject
) -> None:
    """Of the manifest: it stays valid only where a digest, the model's hash or the calibration was changed into
    another valid one; a changed digest of a blob is found when that is loaded."""
    folder = tmp_path_factory.mktemp("byte")
    for path in made.folder.iterdir():
        (folder / path.name).hardlink_to(path)
    manifest = folder / "pack.json"
    raw = bytearray(manifest.read_bytes())
    raw[where % len(raw)] ^= value
    manifest.unlink()
    manifest.write_bytes(raw)
    try:
        found = Pack.open(folder)
    except CheckpointError:
        return
    assert found.pack_hash != made.pack_hash
    for layer in range(found.config.layers):
        for expert in range(found.config.experts):
            name = expert_name(layer, expert)
            if found.manifest.blobs[name].xxh3 != made.manifest.blobs[name].xxh3:
                with pytest.raises(CheckpointError, match="xxh3"):
                    found.expert(layer, expert, BACKEND)
            else:
                got = found.expert(layer, expert, BACKEND).data
                np.testing.assert_array_equal(got, made.expert(layer, expert, BACKEND).data)
    shutil.rmtree(folder)
