"""Packs in the place of checkpoints: the same bits, whatever the number of workers, the crowd, and who dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colibri.deployment.running import Deployment
from colibri.errors import ConfigError, NumericsMismatch
from colibri.kernels.api import ComputeMode
from colibri.models.checkpoint import Checkpoint
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.router_service.handshake import RouterIdentity, shake_hands
from colibri.transport.grpc_stream import open_channel
from tests.support.clusters import answer, deployed, eventually, kill, statuses
from tests.support.command import main
from tests.support.packs import pack, small_mixtral
from tests.support.traffic import Traffic, expected_answers

USERS, TOKENS = 4, 32


def receipts(deployment: Deployment) -> list[object]:
    found = [answer(deployment, prompt, 24) for prompt in ((5, 9, 300, 42, 7), tuple(range(3, 60)))]
    return [(item.ids, item.receipts) for item in found]


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_pack_in_the_checkpoints_dtype_changes_no_bit(tmp_path: Path, dtype: str) -> None:
    model = small_mixtral(tmp_path / "model", dtype)
    made = pack(model, tmp_path / "pack", dtype, dtype)
    with deployed(model, 0) as plain, deployed(made.folder, 0) as packed, deployed(made.folder, 2) as remote:
        expected = receipts(plain)
        assert plain.numerics == packed.numerics
        assert receipts(packed) == receipts(remote) == expected


def test_a_bf16_pack_of_an_fp32_model_is_its_bf16_mode(tmp_path: Path) -> None:
    model = small_mixtral(tmp_path / "model", "fp32")
    made = pack(model, tmp_path / "pack", "bf16", "bf16")
    with deployed(model, 0, compute_mode="bf16") as plain, deployed(made.folder, 1) as packed:
        assert receipts(packed) == receipts(plain)


@pytest.mark.parametrize(
    ("experts", "dense", "mode"),
    [
        ("int8g64", "bf16", "bf16"),
        ("int4g32", "bf16", "fp32"),
        ("int4g128", "int8g128", "bf16"),
        ("int8g32", "fp32", "fp32"),
    ],
)
def test_any_number_of_workers_gives_the_same_receipts(
    tiny_mixtral: Path, tmp_path: Path, experts: str, dense: str, mode: str
) -> None:
    made = pack(tiny_mixtral, tmp_path / "pack", experts, dense)
    with deployed(made.folder, 0, compute_mode=mode) as oracle:
        expected = receipts(oracle)
        crowd = expected_answers(oracle, USERS, TOKENS)
        assert f"w={experts}/wire={mode}" in oracle.numerics.id
        assert f"dense={dense}" in oracle.numerics.id
    for workers in (1, 2, 4):
        with deployed(made.folder, workers, compute_mode=mode) as deployment:
            assert receipts(deployment) == expected
            with Traffic(deployment, crowd) as traffic:
                traffic.wait()


def test_the_demo_model(demo_model: Path, tmp_path: Path) -> None:
    made = pack(demo_model, tmp_path / "pack", "int8g64", "int8g64")
    with deployed(made.folder, 0) as oracle:
        expected = receipts(oracle)
    with deployed(made.folder, 2) as deployment:
        assert receipts(deployment) == expected


def test_a_killed_worker_changes_no_bit(tiny_mixtral: Path, tmp_path: Path) -> None:
    made = pack(tiny_mixtral, tmp_path / "pack", "int4g64")
    with deployed(made.folder, 0) as oracle:
        expected = expected_answers(oracle, USERS, TOKENS)
    with deployed(made.folder, 2, replicas=2) as deployment, Traffic(deployment, expected) as traffic:
        traffic.wait()
        victim = statuses(deployment)[1]
        kill(victim.pid)
        eventually(
            lambda: (
                statuses(deployment)[1].incarnation > victim.incarnation
                and statuses(deployment)[1].served_since > 0
            ),
            30.0,
            "the killed worker is back",
        )
        traffic.wait()


def test_a_worker_of_another_pack_is_refused(tiny_mixtral: Path, tmp_path: Path) -> None:
    one = pack(tiny_mixtral, tmp_path / "one", "int4g64")
    other = pack(tiny_mixtral, tmp_path / "other", "int4g64", "fp32")
    assert one.model_hash() == other.model_hash()
    assert one.weights_hash != other.weights_hash
    assert one.pack_hash != other.pack_hash
    with deployed(one.folder, 1) as deployment:
        numerics = deployment.numerics.expert.id
        for theirs in (other.pack_hash, ""):
            identity = RouterIdentity("test", one.model_hash(), numerics, theirs)
            endpoint = deployment.directory.current().endpoints["w0"]
            with (
                open_channel(endpoint.target, 1 << 20, endpoint.security) as channel,
                pytest.raises(NumericsMismatch, match="pack_hash"),
            ):
                shake_hands(channel, endpoint, identity, 5.0)


def test_a_mode_that_the_pack_was_not_made_for(tiny_mixtral: Path, tmp_path: Path) -> None:
    made = pack(tiny_mixtral, tmp_path / "pack", "int8g64", "fp32")
    with (
        pytest.raises(
            ConfigError, match=r"--compute-mode: expected fp32 with this pack, whose --dense-dtype"
        ),
        deployed(made.folder, 0, compute_mode=ComputeMode.BF16.value),
    ):
        pass


def test_killed_in_the_middle_and_taken_up_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = random_mixtral(
        tmp_path / "model",
        RandomMixtral(
            hidden=128,
            ffn=512,
            layers=6,
            experts=8,
            heads=4,
            kv_heads=2,
            vocab=400,
            max_positions=256,
            seed=4,
        ),
    )
    straight = pack(model, tmp_path / "straight", "int8g64", threads=1)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "colibri.cli.main", "pack", str(model), str(out)]
    command += ["--dtype", "int8", "--group", "64", "--threads", "1"]
    journal = tmp_path / "out.unfinished" / "journal.jsonl"
    for _ in range(3):
        before = len(journal.read_bytes()) if journal.exists() else 0
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 30
            while process.poll() is None and time.monotonic() < until:
                if journal.exists() and len(journal.read_bytes()) > before:
                    break
                time.sleep(0.001)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(10)
        assert not out.exists()
    assert main([*command[3:], "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["pack_hash"] == straight.pack_hash
    assert 0 < report["kept"] < report["blobs"]
    assert not (tmp_path / "out.unfinished").exists()
    assert (out / "experts-00003.safetensors").read_bytes() == (
        straight.folder / "experts-00003.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dtype", "bf16", "--group", "64"), "--group: expected int8 or int4 with it, got --dtype bf16"),
        (("--dtype", "int8", "--no-calibration"), "--no-calibration: expected --dtype int4 with it"),
        (("--dtype", "int8", "--calibration-text", "x"), "--calibration-text: expected --dtype int4 with it"),
        (
            ("--dtype", "int4", "--no-calibration", "--calibration-text", "x"),
            "--no-calibration: expected no --calibration-text with it",
        ),
        (("--dtype", "int4", "--calibration-text", "/nowhere"), "/nowhere: expected a text in UTF-8"),
    ],
)
def test_options_that_exclude_one_another(
    tiny_mixtral: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    message: str,
) -> None:
    assert main(["pack", str(tiny_mixtral), str(tmp_path / "out"), *options]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_pack_is_no_checkpoint_to_pack(
    tiny_mixtral: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = pack(tiny_mixtral, tmp_path / "pack", "int8g64")
    assert main(["pack", str(made.folder), str(tmp_path / "again"), "--dtype", "bf16"]) == 1
    assert "expected a checkpoint, which packing needs, got a pack" in capsys.readouterr().err


def test_int4_is_calibrated_the_same_way_every_time(
    tiny_mixtral: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "words.txt"
    text.write_text("the river rises in the hills\n%%\nand the sea is salt\n")
    hashes = []
    for name, options in (
        ("one", ["--threads", "1"]),
        ("two", ["--threads", "2"]),
        ("text", ["--calibration-text", str(text)]),
        ("none", ["--no-calibration"]),
    ):
        assert (
            main(["pack", str(tiny_mixtral), str(tmp_path / name), "--dtype", "int4", "--json", *options])
            == 0
        )
        found = capsys.readouterr()
        hashes.append(json.loads(found.out)["pack_hash"])
        assert ("chosen by none of the" in found.err) == (name == "text")
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_quality_of_a_pack(tiny_mixtral: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = pack(tiny_mixtral, tmp_path / "plain", "bf16")
    small = pack(tiny_mixtral, tmp_path / "small", "int4g128", "int4g128")
    text = tmp_path / "words.txt"
    text.write_text("the river rises in the hills and the sea is salt\n")
    command = ["bench", "quality", str(tiny_mixtral), str(plain.folder), str(small.folder)]
    assert main([*command, "--text", str(text), "--prompts", "2", "--new-tokens", "16", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["name"] for row in rows] == ["checkpoint", "checkpoint", "plain", "small"]
    assert rows[2]["score"]["kl"] == 0
    assert rows[2]["score"]["perplexity"] == rows[0]["score"]["perplexity"]
    assert rows[2]["repeated"] == rows[0]["repeated"]
    assert rows[3]["score"]["kl"] > rows[1]["score"]["kl"] > 0
    assert main([*command, "--text", str(text), "--prompts", "0"]) == 0
    assert "| small | `cpu/int8/w=int4g128/" in capsys.readouterr().out


def test_what_answers_follow_from(tiny_mixtral: Path, tmp_path: Path) -> None:
    """A plain pack is its checkpoint to whoever compares answers, a quantised one only itself."""
    dtype = Checkpoint.open(tiny_mixtral).config.dtype
    plain = pack(tiny_mixtral, tmp_path / "plain", dtype, dtype)
    assert plain.weights_hash == Checkpoint.open(tiny_mixtral).weights_hash
    quantised = pack(tiny_mixtral, tmp_path / "quantised", "int4g64", dtype)
    assert quantised.weights_hash == quantised.pack_hash
