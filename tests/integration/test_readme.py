"""README.md tells the truth: its Python runs, its commands parse, its targets exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from colibri.cli.verbs import build_parser
from tests.integration.test_serve import serving

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands(prefix: str) -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.startswith(prefix)]


def test_the_client_example_runs(tiny_mixtral: Path, tmp_path: Path) -> None:
    (example,) = blocks("python")
    assert "127.0.0.1:50051" in example
    with serving(tiny_mixtral, tmp_path) as serve:
        program = example.replace("127.0.0.1:50051", serve.target)
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
    assert re.search(r"\n(LENGTH|STOP), receipt [0-9a-f]{16}\n$", result.stdout)


@pytest.mark.parametrize("line", commands(".venv/bin/colibri"))
def test_its_commands_parse(line: str) -> None:
    words = shlex.split(line, comments=True)
    assert build_parser().parse_args(words[1:]).verb == words[1]


@pytest.mark.parametrize("line", commands("make"))
def test_its_make_targets_exist(line: str) -> None:
    words = shlex.split(line, comments=True)
    subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, timeout=60, check=True)
    for word in words[1:]:
        if word.startswith("ARGS="):
            build_parser().parse_args(["demo", *shlex.split(word.removeprefix("ARGS="))])


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", README))
def test_its_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()
