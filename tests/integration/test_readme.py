"""README.md tells the truth: its Python runs, its commands parse, its targets and options exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from colibri.cli.verbs import build_parser
from colibri.v1 import generation_pb2
from tests.support.serving import serving

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands(prefix: str) -> list[list[str]]:
    """The words of each line in a block of shell that runs `prefix`, variables before it left out."""
    lines = [shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()]
    plain = [[word for index, word in enumerate(line) if index or "=" not in word] for line in lines]
    return [line for line in plain if line and line[0] == prefix]


def test_its_five_lines_print_what_it_says(demo_model: Path) -> None:
    found = re.search(r"```python\n(from colibri import Colibri\n.*?)```\n\n```\n(.*?)```", README, re.DOTALL)
    assert found is not None
    example, output = found.groups()
    assert len([line for line in example.splitlines() if line]) <= 5
    result = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=240, check=True
    )
    assert result.stdout.strip() == output.strip()
    assert result.stderr == ""


def test_the_client_example_runs(tiny_mixtral: Path, tmp_path: Path) -> None:
    (example,) = [block for block in blocks("python") if "127.0.0.1:50051" in block]
    with serving(tiny_mixtral, tmp_path) as serve:
        program = example.replace("127.0.0.1:50051", serve.target)
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
        )
    assert re.search(r"\n(LENGTH|STOP), receipt [0-9a-f]{16}\n$", result.stdout)


def test_there_are_commands_to_check() -> None:
    assert len(commands(".venv/bin/colibri")) >= 8
    assert len(commands("make")) >= 3
    assert len(commands("grpcurl")) == 2


@pytest.mark.parametrize("words", commands(".venv/bin/colibri"), ids=" ".join)
def test_its_commands_parse(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "colibri.yaml").write_text(blocks("yaml")[0])
    assert build_parser().parse_args(words[1:]).verb == words[1]


def test_its_configuration_is_taken(tmp_path: Path) -> None:
    (text,) = blocks("yaml")
    (tmp_path / "colibri.yaml").write_text(text)
    args = build_parser().parse_args(["serve", f"--config={tmp_path}/colibri.yaml"])
    assert (args.model, args.workers, args.max_running) == (Path("/models/mixtral-8x7b"), 4, 32)


@pytest.mark.parametrize("words", commands("grpcurl"), ids=" ".join)
def test_its_calls_fit_the_protos(words: list[str]) -> None:
    """What grpcurl does: a method found by name, and its request made from JSON."""
    if words[-1] == "list":
        return
    service, _, method = words[-1].partition("/")
    found = generation_pb2.DESCRIPTOR.services_by_name[service.rpartition(".")[2]]
    assert found.full_name == service
    request = GetMessageClass(found.methods_by_name[method].input_type)()
    json_format.ParseDict(json.loads(words[words.index("-d") + 1]), request)
    assert request.ByteSize() > 0


@pytest.mark.parametrize("words", commands("make"), ids=" ".join)
def test_its_make_targets_exist(words: list[str]) -> None:
    subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, timeout=60, check=True)
    for word in words[1:]:
        if word.startswith("ARGS="):
            build_parser().parse_args(["demo", *shlex.split(word.removeprefix("ARGS="))])


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", README))
def test_its_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


@pytest.mark.parametrize("folder", re.findall(r"`([a-z_]+)/`", README))
def test_its_folders_exist(folder: str) -> None:
    assert any((root / folder).is_dir() for root in (ROOT, ROOT / "src/colibri"))
