"""What a model is called: a path, a URL, or `demo`."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri.deployment.model_name import find_model


def test_paths_and_urls_are_what_they_are() -> None:
    assert find_model("models/mixtral") == Path("models/mixtral")
    assert find_model(Path("/m")) == Path("/m")
    assert find_model("https://host/pack#sha256=00") == "https://host/pack#sha256=00"


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert find_model("demo") == Path("demo")


def test_demo_is_the_demo_model(demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_model("demo") == find_model(Path("demo")) == demo_model
