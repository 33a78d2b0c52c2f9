"""MODEL#sha256=...: a pack's pack.json by its digest, as a folder and as a URL."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from colibri.errors import CheckpointError, ConfigError
from colibri.models.location import pinned, split_pin
from colibri.models.model import open_checkpoint, open_model
from colibri.models.packs.pack import Pack
from tests.support.clusters import answer, deployed
from tests.support.command import main
from tests.support.packs import pack, small_mixtral

PIN = "0123456789abcdef" * 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("packs")
    return pack(small_mixtral(folder / "model", "bf16"), folder / "pack", "bf16")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("place", "without"),
    [
        (Path("/a/b"), Path("/a/b")),
        ("s3://a/b", "s3://a/b"),
        (Path(f"/a/b#sha256={PIN}"), Path("/a/b")),
        (f"s3://a/b#sha256={PIN.upper()}", "s3://a/b"),
    ],
)
def test_how_it_is_written(place: str | Path, without: str | Path) -> None:
    assert split_pin(place) == (without, PIN if "#" in str(place) else "")


@pytest.mark.parametrize("pin", ["", "abc", PIN[1:], PIN + "0", "g" * 64, PIN + "#sha256="])
def test_what_is_no_digest(pin: str) -> None:
    with pytest.raises(ConfigError, match="MODEL: expected 64 hexadecimal digits behind #sha256="):
        split_pin(f"/a/b#sha256={pin}")


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_the_right_one_and_a_wrong_one(made: Pack, scheme: str) -> None:
    digest = hashlib.sha256((made.folder / "pack.json").read_bytes()).hexdigest()
    model = open_model(f"{scheme}{made.folder}#sha256={digest}")
    assert (model.pack_hash, model.name) == (made.pack_hash, "pack")
    assert model.origin == f"{scheme}{made.folder}#sha256={digest}"
    with pytest.raises(
        CheckpointError, match=rf"pack\.json: sha256: expected {PIN}, as MODEL#sha256= says, got {digest}"
    ):
        open_model(f"{scheme}{made.folder}#sha256={PIN}")


def test_workers_compare_it_too(made: Pack, tmp_path: Path) -> None:
    digest = made.sha256
    with deployed(pinned(str(made.folder), digest), 1) as one, deployed(made.folder, 0) as own:
        assert answer(one).receipts == answer(own).receipts
    other = tmp_path / "other"
    shutil.copytree(made.folder, other)
    text = (other / "pack.json").read_text()
    (other / "pack.json").write_text(text.replace(made.model_hash(), "0" * 32))
    assert Pack.open(other).pack_hash != made.pack_hash
    command = [sys.executable, "-m", "colibri.cli.main", "expert", f"{other}#sha256={digest}", "--share-cpus"]
    done = subprocess.run(
        [*command, f"--listen=unix:{tmp_path}/w"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert f"sha256: expected {digest}, as MODEL#sha256= says, got " in done.stderr


def test_a_checkpoint_cannot_be_pinned(made: Pack, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made.folder.parent / "model"
    with pytest.raises(
        ConfigError, match=r"MODEL: expected a pack, whose pack.json #sha256= pins, got a folder"
    ):
        open_model(f"{folder}#sha256={PIN}")
    assert main(["inspect", f"{made.folder}#sha256={PIN}"]) == 1
    with pytest.raises(CheckpointError, match="expected a checkpoint"):
        open_checkpoint(made.folder, "packing")


def test_verify_prints_it(made: Pack, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(made.folder)]) == 0
    assert f"its sha256 is {made.sha256}" in capsys.readouterr().out
    assert main(["verify", "--accept", str(made.folder)]) == 1
    assert "--accept: expected a checkpoint" in capsys.readouterr().err
    copy = tmp_path / "copy"
    shutil.copytree(made.folder, copy)
    blob = made.manifest.blobs["layers.1.experts.2"]
    with open(copy / blob.file, "r+b") as file:
        file.seek(blob.offset + 100)
        file.write(b"\xff")
    assert main(["verify", str(copy)]) == 1
    assert "layers.1.experts.2: xxh3: expected " in capsys.readouterr().err
