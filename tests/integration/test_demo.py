"""`colibri demo` as a person runs it: the right answer, through two workers, with the receipts of one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "colibri.cli.main", "demo", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)


@pytest.mark.parametrize("mode", ["bf16", "fp32"])
def test_paris(demo_model: Path, mode: str) -> None:
    two, none = (
        json.loads(demo(f"--workers={workers}", f"--compute-mode={mode}", "--json").stdout)
        for workers in (2, 0)
    )
    assert two["text"] == "The capital of France is Paris."
    assert two["finish_reason"] == "stop"
    assert two["workers"] == ["w0", "w1"]
    assert len(two["receipts"]) == len(two["ids"]) == 8
    assert two["ids"] == none["ids"]
    assert two["receipts"] == none["receipts"]


def test_what_a_person_sees(demo_model: Path) -> None:
    result = demo("--receipts")
    lines = result.stdout.splitlines()
    assert lines[0] == "The capital of France is Paris."
    assert len(lines) == 1 + 8 + 1
    phases = [line[:16].strip() for line in result.stderr.splitlines()]
    for phase in ("process start", "checkpoint", "workers up", "experts loaded", "first token"):
        assert phase in phases
