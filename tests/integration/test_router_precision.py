"""--router-precision int16: enters the engine id, tells how often it chose otherwise, and keeps the promise."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.clusters import BACKEND

_TOLD = re.compile(r"router precision int16: fp32 would have chosen otherwise for (\d+) of (\d+) rows")


def generate(model: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "colibri.cli.main", "generate", str(model), f"--backend={BACKEND}"]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)


def test_it_enters_the_id_and_tells_the_rate(tiny_mixtral: Path) -> None:
    common = ("--prompt=w1 w2 w3", "--max-tokens=8", "--json", "--router-precision=int16")
    found = []
    for workers in (0, 2):
        result = generate(tiny_mixtral, *common, f"--workers={workers}")
        assert result.returncode == 0, result.stderr
        found.append(json.loads(result.stdout))
        told = _TOLD.search(result.stderr)
        assert told is not None, result.stderr
        differing, rows = map(int, told.groups())
        assert 0 <= differing <= rows
        assert rows > 8
    for document in found:
        assert document["engine_numerics_id"].endswith("/gate=int16")
        assert document["ids"] == found[0]["ids"]
        assert document["receipts"] == found[0]["receipts"]


def test_fp32_is_the_default_and_tells_nothing(tiny_mixtral: Path) -> None:
    result = generate(tiny_mixtral, "--prompt=w1", "--max-tokens=2", "--workers=0", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["engine_numerics_id"].endswith("/gate=fp32")
    assert "router precision" not in result.stderr


@pytest.mark.parametrize(("value", "code"), [("int8", 2), ("INT16", 2)])
def test_unknown_precisions(tiny_mixtral: Path, value: str, code: int) -> None:
    result = generate(tiny_mixtral, "--prompt=w1", f"--router-precision={value}")
    assert result.returncode == code
    assert "expected one of fp32, int16" in result.stderr
