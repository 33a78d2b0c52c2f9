"""docs/client.md tells the truth: every example runs, against a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import peers
from colibri.models.random_mixtral import random_mixtral
from tests.conftest import TINY
from tests.integration.test_chat import TEMPLATE
from tests.support.serving import Serving, serving
from tests.support.torch_peer import torch_python

DOCS = Path(__file__).resolve().parents[2] / "docs" / "client.md"
BLOCKS = re.findall(r"## (.*?)\n|```python\n(.*?)```", DOCS.read_text(), flags=re.DOTALL)
#: (section, program), and what its output ends with.
EXAMPLES: list[tuple[str, str]] = []
section = ""
for heading, program in BLOCKS:
    section = heading or section
    if program:
        EXAMPLES.append((section, program))
ENDS = {
    "An answer, as it comes": [
        r"\n(LENGTH|STOP), receipt [0-9a-f]{16}\n",
        r"its first token: \d+ -[\d.]+ \(\(",
        r"top_p: expected above 0",
    ],
    "Chat, tokens and text": [
        r"\d+ tokens: \('.*\n<system>Answer in one word\.\n<user>Capital of France\?\n"
    ],
    "Deadlines and the end of a request": [r"ABORT after \d+ tokens\n"],
    "Retries, and answers that survive the server": [r"(LENGTH|STOP) \d+ receipts\n", r"True\n"],
    "asyncio": [r"The capital of France is -> .*\nThe capital of Peru is -> "],
    "Recorded answers": [r"as recorded\n"],
    "A transformers program with its experts in the cluster": [
        r"layer 0: \d+ calls, \d+ rows, [\d.]+ ms a call\n"
    ],
}
CASES = [
    pytest.param(
        program, ENDS[section][[p for s, p in EXAMPLES if s == section].index(program)], id=f"{section}-{at}"
    )
    for at, (section, program) in enumerate(EXAMPLES)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = random_mixtral(tmp_path_factory.mktemp("docs") / "m", TINY)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(model, tmp_path_factory.mktemp("serve"), "--workers=2") as running:
        yield running


def test_every_example_is_known() -> None:
    found = {section: [s for s, _ in EXAMPLES].count(section) for section, _ in EXAMPLES}
    assert found == {section: len(ends) for section, ends in ENDS.items()}


@pytest.mark.parametrize(("program", "ends"), CASES)
def test_it_runs(served: Serving, model: Path, program: str, ends: str) -> None:
    assert "127.0.0.1:50051" in program
    program = program.replace("127.0.0.1:50051", served.target).replace('"MODEL"', repr(str(model)))
    torch = "import torch" in program
    result = subprocess.run(
        [torch_python() if torch else sys.executable, "-c", program],
        env=peers.with_client() if torch else None,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert re.search(ends, result.stdout), result.stdout
