"""Weights that changed since they were first loaded are refused by file and tensor; what only looks new is not."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colibri.errors import CheckpointError
from colibri.kernels.factory import make_backend
from colibri.models.checked import CheckedCheckpoint
from colibri.models.checkpoint import Checkpoint
from colibri.models.digest_book import DigestBook
from colibri.models.digest_file import (
    FILE_NAME,
    WHOLE,
    add_digests,
    decode,
    encode,
    places,
    read_digests,
    replace_digests,
)
from colibri.models.random_mixtral import random_mixtral
from colibri.models.safetensors_file import SafetensorsFile
from colibri.models.safetensors_writer import TensorSpec, write_file
from colibri.models.shards import open_weights
from colibri.models.text_names import GENERATION_NAME, TEMPLATE_NAME, TOKENIZER_NAME
from tests.conftest import TINY
from tests.support import flips
from tests.support.loads import coordinator, deployment, refusals

BACKEND = make_backend("reference")
SMALL = replace(TINY, hidden=32, ffn=48, layers=2, experts=4, vocab=300)
ALL = deployment(0, 1)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Loaded once, and found good."""
    monkeypatch.setenv("COLIBRI_HOME", str(tmp_path / "home"))
    folder = random_mixtral(tmp_path / "model", SMALL)
    assert refusals(folder, BACKEND, ALL) == []
    return folder


def test_the_last_byte_of_every_tensor(model: Path) -> None:
    """Windows of the model's hash see some of them; everything must be seen."""
    for name, file in open_weights(model).items():
        info = file.tensors[name]
        place = flips.Place(file.path, name, info.end - 2)
        with flips.flipped(place):
            found = refusals(model, BACKEND, ALL)
        assert len(found) >= 1, name
        assert f"{file.path}: {name}: content: expected " in found[0]
        assert "as first loaded" in found[0]
        assert f"`colibri verify {model} --accept`" in found[0]
    assert refusals(model, BACKEND, ALL) == []


def test_the_header_counts(model: Path) -> None:
    """Its padding holds nothing, and is part of the file all the same."""
    path = model / "model.safetensors"
    raw = path.read_bytes()
    at = raw.index(b'"dtype"') - 1
    assert raw[at : at + 1] == b"{"
    length = int.from_bytes(raw[:8], "little")
    path.write_bytes((length + 8).to_bytes(8, "little") + raw[8 : 8 + length] + b" " * 8 + raw[8 + length :])
    assert "model.safetensors: #header: content: expected " in refusals(model, BACKEND, ALL)[0]


@pytest.mark.parametrize("name", [TOKENIZER_NAME, GENERATION_NAME, TEMPLATE_NAME, "config.json"])
def test_texts(model: Path, name: str) -> None:
    path = model / name
    before = path.read_bytes() if path.exists() else b""
    path.write_bytes(before + b"\n")
    with pytest.raises(CheckpointError, match=rf"{name}: content: expected .*, as first loaded, got "):
        coordinator(model, BACKEND)
    if name != "config.json":
        # Workers use none of these.
        assert refusals(model, BACKEND, deployment(2, 1)[1:]) == []


def test_touched_copied_moved_and_linked_models_are_the_same(model: Path, tmp_path: Path) -> None:
    for path in model.iterdir():
        os.utime(path)
    assert refusals(model, BACKEND, ALL) == []
    shutil.copytree(model, tmp_path / "copy")
    assert refusals(tmp_path / "copy", BACKEND, ALL) == []
    (tmp_path / "link").symlink_to(model)
    assert refusals(tmp_path / "link", BACKEND, ALL) == []
    model.rename(tmp_path / "moved")
    assert refusals(tmp_path / "moved", BACKEND, ALL) == []
    shutil.copytree(tmp_path / "moved", tmp_path / "bare", ignore=shutil.ignore_patterns(FILE_NAME))
    assert refusals(tmp_path / "bare", BACKEND, ALL) == []


def test_each_expert_of_a_fused_tensor(tmp_path: Path) -> None:
    fused = fuse(random_mixtral(tmp_path / "model", SMALL), tmp_path / "fused")
    loads = deployment(2, 1)
    assert refusals(fused, BACKEND, loads) == []
    file = SafetensorsFile(fused / "model.safetensors")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    info = file.tensors[name]
    rows = info.nbytes // SMALL.experts
    with flips.flipped(flips.Place(file.path, name, info.begin + 3 * rows - 2)):
        (found,) = refusals(fused, BACKEND, loads)  # of the one worker that holds expert 2
    size = SMALL.ffn * SMALL.hidden
    assert f"{name}[{5 * size}:{6 * size}]: content: expected " in found


def test_digests_of_experts_are_the_same_in_both_layouts(tmp_path: Path) -> None:
    plain = random_mixtral(tmp_path / "model", SMALL)
    fused = fuse(plain, tmp_path / "fused")
    one, two = (CheckedCheckpoint(Checkpoint.open(folder)) for folder in (plain, fused))
    for layer in range(SMALL.layers):
        for expert in range(SMALL.experts):
            assert one.expert_and_digest(layer, expert)[1] == two.expert_and_digest(layer, expert)[1]
    assert one.expert_and_digest(0, 0)[1] != one.expert_and_digest(0, 1)[1]


def test_the_first_load_says_that_it_is_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = random_mixtral(tmp_path / "model", SMALL)
    coordinator(folder, BACKEND)
    assert "believed, and their digests noted in" in caplog.text
    assert str(folder / FILE_NAME) in caplog.text
    caplog.clear()
    coordinator(folder, BACKEND)
    assert caplog.text == ""


def test_many_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    """Each notes pieces of its own and one that is everybody's."""
    writers, pieces = 8, 40

    def write(number: int) -> None:
        for count in range(5):
            own = {("f", f"t{number}.{count}.{piece}"): f"{number:032x}" for piece in range(pieces)}
            add_digests(tmp_path, tmp_path / "home", {**own, ("f", "shared"): "a" * 32})
            read_digests(tmp_path, tmp_path / "home")

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    assert len(read_digests(tmp_path, tmp_path / "home")) == writers * 5 * pieces + 1
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_two_first_loads_that_disagree(tmp_path: Path) -> None:
    one, two = (DigestBook(tmp_path, tmp_path / "home") for _ in range(2))
    one.check("f", "t", "a" * 32)
    two.check("f", "t", "b" * 32)
    one.save()
    with pytest.raises(CheckpointError, match=r"f: t: content: expected a{32}, as first loaded, got b{32}"):
        two.save()
    with pytest.raises(CheckpointError, match=r"expected a{32}"):
        two.check("f", "t", "b" * 32)


def test_a_folder_that_cannot_be_written() -> None:
    """The notes go to Colibri's home, under the folder's own path however it is reached."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        root = Path(name)
        folder, home = root / "model", root / "home"
        for made in (folder, home):
            made.mkdir(mode=0o755)
        root.chmod(0o755)
        home.chmod(0o777)
        (root / "link").symlink_to(folder)
        folder.chmod(0o555)
        with as_nobody():
            book = DigestBook(root / "link", home)
            book.check("f", WHOLE, "a" * 32)
            book.save()
            assert list(folder.iterdir()) == []
            kept = places(folder, home)[1]
            assert json.loads(kept.read_bytes())["folder"] == str(folder.resolve())
            with pytest.raises(CheckpointError, match=r"expected a{32}, as first loaded, got b{32}"):
                DigestBook(folder, home).check("f", WHOLE, "b" * 32)
            replace_digests(folder, home, {("f", WHOLE): "b" * 32})
            DigestBook(folder, home).check("f", WHOLE, "b" * 32)
        folder.chmod(0o755)


def test_nowhere_to_note_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    book = DigestBook(tmp_path / "gone", tmp_path / "file")
    book.check("f", "t", "a" * 32)
    book.save()
    assert "are not noted, so a later change of them will not be seen" in caplog.text


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "expected a JSON object"),
        (b"{}", "format: expected 'colibri-digests', version 1, got None, version None"),
        (b'{"format": "colibri-digests", "version": 2}', "version 1, got 'colibri-digests', version 2"),
        (b'{"format": "colibri-digests", "version": 1, "files": []}', r"files: expected an object, got \[\]"),
        (
            b'{"format": "colibri-digests", "version": 1, "files": {"a": {"b": "xyz"}}}',
            "files: a: b: expected 32 hexadecimal digits, got 'xyz'",
        ),
    ],
)
def test_damaged_notes(model: Path, raw: bytes, message: str) -> None:
    (model / FILE_NAME).write_bytes(raw)
    with pytest.raises(CheckpointError, match=message):
        coordinator(model, BACKEND)


def test_notes_survive_writing_and_reading() -> None:
    digests = {("a", WHOLE): "0" * 32, ("b", "t"): "f" * 32, ("c", WHOLE): "absent"}
    assert decode(encode(digests), "here") == digests


def fuse(plain: Path, folder: Path) -> Path:
    """The same model with the experts of a layer in one tensor."""
    shutil.copytree(plain, folder, ignore=shutil.ignore_patterns(FILE_NAME))
    source = Checkpoint.open(plain)
    config = source.config
    tensors: dict[str, np.ndarray] = {
        name: file.array(name) for name, file in source.files.items() if "block_sparse_moe" not in name
    }
    for layer in range(config.layers):
        experts = [source.expert(layer, expert) for expert in range(config.experts)]
        at = f"model.layers.{layer}.mlp"
        tensors[f"{at}.gate.weight"] = source.gate(layer)
        tensors[f"{at}.experts.gate_up_proj"] = np.stack([np.concatenate([e.gate, e.up]) for e in experts])
        tensors[f"{at}.experts.down_proj"] = np.stack([e.down for e in experts])
    specs = [TensorSpec(name, config.dtype, array.shape) for name, array in tensors.items()]
    (folder / "model.safetensors").unlink()
    write_file(folder / "model.safetensors", specs, lambda spec: tensors[spec.name])
    return folder


@contextmanager
def as_nobody() -> Iterator[None]:
    """Permissions hold for everybody but root."""
    if os.geteuid() != 0:
        yield
        return
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
