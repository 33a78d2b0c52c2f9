"""Packs by URL: each process brings what it needs and nothing else, and computes the same bits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from colibri.errors import CheckpointError, ConfigError, WeightsUnavailable
from colibri.kernels.factory import make_backend
from colibri.models.model import open_model
from colibri.models.packs.fetched import open_fetched
from colibri.models.packs.pack import Pack
from colibri.models.packs.plan import DENSE_FILE
from colibri.models.packs.remote_folder import RemoteFolder
from tests.support.clusters import answer, deployed
from tests.support.packs import pack, small_mixtral


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    folder = tmp_path_factory.mktemp("packs")
    return pack(small_mixtral(folder / "model", "bf16"), folder / "pack", "bf16")


@pytest.fixture
def url(made: Pack, tmp_path: Path) -> str:
    """Of a copy that a test may spoil."""
    shutil.copytree(made.folder, tmp_path / "elsewhere")
    return f"file://{tmp_path / 'elsewhere'}"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLIBRI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def blobs(home: Path) -> set[str]:
    return {path.name for path in (home / "weights" / "blobs").glob("*/*")}


def addresses(made: Pack, experts: bool) -> set[str]:
    return {blob.sha256 for blob in made.manifest.blobs.values() if (blob.file != DENSE_FILE) == experts}


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_bits(made: Pack, url: str, home: Path, workers: int) -> None:
    with deployed(made.folder, 0) as own, deployed(url, workers) as fetched:
        assert fetched.numerics == own.numerics
        assert fetched.model.pack_hash == made.pack_hash
        found, expected = answer(fetched), answer(own)
        assert (found.ids, found.receipts) == (expected.ids, expected.receipts)
    assert blobs(home) == addresses(made, True) | addresses(made, False)


def test_a_process_brings_its_own_experts_only(made: Pack, url: str, tmp_path: Path) -> None:
    backend = make_backend("cpu", threads=1)
    model = open_fetched(url, tmp_path / "a")
    assert blobs(tmp_path / "a") == set()
    for layer, expert in ((0, 3), (1, 1)):
        want = made.expert(layer, expert, backend)
        got = model.expert(layer, expert, backend)
        assert got.data.tobytes() == want.data.tobytes()
    entries = made.manifest.blobs
    wanted = [entries["layers.0.experts.3"], entries["layers.1.experts.1"]]
    assert blobs(tmp_path / "a") == {entry.sha256 for entry in wanted}
    assert model.fetched == sum(entry.bytes for entry in wanted)
    backend.close()


def test_ahead_brings_them_before_they_are_asked_for(made: Pack, url: str, tmp_path: Path) -> None:
    model = open_fetched(url, tmp_path / "a")
    keys = [(layer, expert) for layer in range(2) for expert in range(4)]
    with model.ahead(keys):
        deadline = threading.Event()
        for _ in range(600):
            if blobs(tmp_path / "a") == addresses(made, True):
                break
            deadline.wait(0.05)
    assert blobs(tmp_path / "a") == addresses(made, True)


def test_status_tells_what_was_fetched(made: Pack, url: str, home: Path) -> None:
    with deployed(url, 2) as deployment:
        assert deployment.launcher is not None
        fetched = [status.bytes_fetched for status in deployment.launcher.status()]
    experts = sum(blob.bytes for blob in made.manifest.blobs.values() if blob.file != DENSE_FILE)
    assert sum(fetched) == experts
    assert all(fetched)
    with deployed(url, 2) as again:
        assert again.launcher is not None
        assert [status.bytes_fetched for status in again.launcher.status()] == [0, 0]


def test_generate_takes_a_url(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "colibri.cli.main", "generate", url, "--workers=1", "--json"]
    run = subprocess.run(
        [*command, "--prompt-ids=5,9,300", "--max-tokens=4", "--ignore-eos"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLIBRI_HOME": str(tmp_path / "home")},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_a_blob_that_went_bad_here_is_brought_again(made: Pack, url: str, tmp_path: Path) -> None:
    backend = make_backend("cpu", threads=1)
    want = made.expert(0, 0, backend).data.tobytes()
    open_fetched(url, tmp_path / "a").expert(0, 0, backend)
    [path] = (tmp_path / "a" / "weights" / "blobs").glob("*/*")
    raw = bytearray(path.read_bytes())
    raw[100] ^= 1
    path.write_bytes(raw)
    assert open_fetched(url, tmp_path / "a").expert(0, 0, backend).data.tobytes() == want
    backend.close()


def test_a_blob_that_is_bad_there_is_refused(made: Pack, url: str, tmp_path: Path) -> None:
    entry = made.manifest.blobs["layers.0.experts.0"]
    with open(tmp_path / "elsewhere" / entry.file, "r+b") as file:
        file.seek(entry.offset + 100)
        file.write(b"spoiled")
    backend = make_backend("cpu", threads=1)
    with pytest.raises(CheckpointError, match=rf"layers.0.experts.0: sha256: expected {entry.sha256}, got"):
        open_fetched(url, tmp_path / "a").expert(0, 0, backend)
    backend.close()


def test_a_text_that_is_bad_there_is_refused(url: str, tmp_path: Path) -> None:
    with open(tmp_path / "elsewhere" / "config.json", "a") as file:
        file.write(" ")
    with pytest.raises(CheckpointError, match=r"config.json: sha256: expected"):
        open_fetched(url, tmp_path / "a")


@pytest.mark.parametrize(
    ("place", "kind", "message"),
    [
        ("nosuch://bucket/pack", ConfigError, "MODEL: expected a folder, or a URL whose scheme fsspec has"),
        ("file:///nowhere/at/all", WeightsUnavailable, "file:///nowhere/at/all/pack.json: FileNotFoundError"),
    ],
)
def test_places_that_are_none(tmp_path: Path, place: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        open_model(place, tmp_path)


class Slow(LocalFileSystem):  # type: ignore[misc]
    """A scheme that stops answering, or answers with an error, when told to."""

    protocol = "slow"
    cachable = False
    hang = threading.Event()
    failures = 0
    calls = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(path.removeprefix("slow://")))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        Slow.calls += 1
        if Slow.failures:
            Slow.failures -= 1
            raise OSError("https://user:secret@host says no")
        if Slow.hang.is_set():
            threading.Event().wait(5)
        return bytes(super().cat_file(path, start=start, end=end))


@pytest.fixture
def slow(url: str) -> Iterator[str]:
    fsspec.register_implementation("slow", Slow, clobber=True)
    Slow.hang.clear()
    Slow.failures = Slow.calls = 0
    yield url.replace("file://", "slow://")
    Slow.hang.clear()


def test_failed_reads_are_tried_again(made: Pack, slow: str, tmp_path: Path) -> None:
    model = open_fetched(slow, tmp_path / "a")
    Slow.failures = 2
    backend = make_backend("cpu", threads=1)
    assert model.expert(0, 0, backend).data.tobytes() == made.expert(0, 0, backend).data.tobytes()
    backend.close()


def test_a_read_that_hangs_is_named(slow: str) -> None:
    remote = RemoteFolder(slow, read_s=0.2)
    Slow.hang.set()
    with pytest.raises(WeightsUnavailable, match=r"slow://.*/pack.json: no answer within 0.2 s") as caught:
        remote.read("pack.json", 0, 10)
    assert caught.value.retryable


def test_names_hide_who_asks(slow: str) -> None:
    remote = RemoteFolder("file://user:secret@/somewhere")
    assert remote.name == "file:///somewhere"
    failing = RemoteFolder(slow)
    Slow.failures = 1
    with pytest.raises(WeightsUnavailable) as caught:
        failing.read("pack.json", 0, 10)
    assert str(caught.value).endswith("OSError: https://host says no")


def test_the_manifest_is_kept_under_its_hash(made: Pack, url: str, tmp_path: Path) -> None:
    model = open_fetched(url, tmp_path / "a")
    assert model.folder == tmp_path / "a" / "weights" / "packs" / made.pack_hash
    assert json.loads((model.folder / "pack.json").read_text())["model_hash"] == made.manifest.model_hash
    assert not (model.folder / DENSE_FILE).exists()
