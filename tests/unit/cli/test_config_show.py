from __future__ import annotations

import json
from pathlib import Path

import pytest

from colibri.cli.main import main


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests run with an option in the environment (tests/conftest.py)."""
    monkeypatch.delenv("COLIBRI_CPU_LOCKS", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "colibri.yaml"
    path.write_text("workers: 3\nserve:\n  kv-page: 8\n")
    return path


def show(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["config", "show", *argv]) == 0
    return capsys.readouterr().out


def test_resolved_tells_every_source(
    capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLIBRI_KV_TOKENS", "32")
    out = show(capsys, "--resolved", "--json", f"--config={file}", "serve", "m", "--max-running", "4")
    found = json.loads(out)["serve"]
    assert found["workers"] == {"value": 3, "source": "file", "where": f"{file}:1"}
    assert found["kv-page"] == {"value": 8, "source": "file", "where": f"{file}:3"}
    assert found["kv-tokens"] == {"value": 32, "source": "environment", "where": "COLIBRI_KV_TOKENS"}
    assert found["max-running"] == {"value": 4, "source": "flag", "where": ""}
    assert found["model"] == {"value": "m", "source": "flag", "where": ""}
    assert found["compute-mode"] == {"value": None, "source": "default", "where": ""}
    assert found["listen"] == {"value": "127.0.0.1:50051", "source": "default", "where": ""}
    text = show(capsys, "--resolved", f"--config={file}", "serve", "m").splitlines()
    assert ["kv-page", "8", f"{file}:3"] in [line.split() for line in text]
    assert ["kv-tokens", "32", "COLIBRI_KV_TOKENS"] in [line.split() for line in text]


def test_without_resolved_only_what_was_said(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    lines = show(capsys, f"--config={file}", "serve").splitlines()
    assert lines == ["colibri serve", f"  workers  3  {file}:1", f"  kv-page  8  {file}:3"]
    assert show(capsys, "inspect") == "colibri inspect\n  every option has its default\n"


def test_all_verbs(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    found = json.loads(show(capsys, "--json", f"--config={file}"))
    assert found["generate"]["workers"]["value"] == 3
    assert found["bench decode"]["workers"]["value"] == 3
    assert found["doctor"] == {}
    assert "every option of every verb has its default" in show(capsys)
    group = json.loads(show(capsys, "--json", "--resolved", "bench"))
    assert {"bench decode", "bench prefill"} <= group.keys()


def test_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "srve"]) == 1
    assert "got 'srve'; did you mean 'serve'?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["config", "show", "serve", "--wrokers=3"])
    assert caught.value.code == 2
    assert "colibri serve: unknown argument '--wrokers=3'" in capsys.readouterr().err
