"""docs/cli is what the parsers say."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri.cli.docs import main, pages, stale
from colibri.cli.parser import leaves
from colibri.cli.verbs import build_parser

ROOT = Path(__file__).resolve().parents[3]


def test_the_pages_are_current() -> None:
    assert stale(ROOT / "docs/cli") == [], "run `python -m colibri.cli.docs`"


def test_every_option_is_documented() -> None:
    made = pages()
    for path, parser in leaves(build_parser()):
        page = made[f"{path[0]}.md"]
        assert f"# colibri {' '.join(path)}\n" in page
        for action in parser._actions:
            for option in action.option_strings:
                assert option in page or option in ("-h", "--help")


def test_writing_and_checking(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cli"
    assert main([str(folder)]) == 0
    assert main(["--check", str(folder)]) == 0
    (folder / "serve.md").write_text("old")
    (folder / "gone.md").write_text("a verb that is no more")
    assert main(["--check", str(folder)]) == 1
    err = capsys.readouterr().err
    assert "serve.md is not current" in err
    assert "gone.md is not current" in err
    assert main([str(folder)]) == 0
    assert {path.name: path.read_text() for path in folder.iterdir()} == pages()
