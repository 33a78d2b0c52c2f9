"""`demo` is a model's name for every verb."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "demo", "--json"],
        ["generate", "demo", "--prompt=Hello", "--max-tokens=1", "--workers=0", "--json"],
        ["bench", "decode", "demo", "--workers=0", "--rounds=1", "--new-tokens=2", "--json"],
    ],
    ids=lambda words: words[0],
)
def test_verbs_take_it(demo_model: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "colibri.cli.main", *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert json.loads(result.stdout)
