"""`colibri bench` on a tiny model: what it prints is what the engine did."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from colibri.bench.model import PHASES
from tests.support.clusters import BACKEND
from tests.support.command import main


def bench(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert main(["bench", *argv, f"--backend={BACKEND}", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def check_tokens_s(found: dict[str, Any], rounds: int) -> None:
    speeds = found["tokens_s"]
    assert len(speeds["rounds"]) == rounds
    assert 0 < speeds["min"] <= speeds["median"] <= speeds["max"]
    assert statistics.median(speeds["rounds"]) == speeds["median"]


@pytest.mark.parametrize("workers", [0, 2])
def test_decode(tiny_mixtral: Path, capsys: pytest.CaptureFixture[str], workers: int) -> None:
    found = bench(
        capsys, "decode", str(tiny_mixtral), f"--workers={workers}", "--rounds=2", "--new-tokens=900",
        "--prompt-tokens=5", "--batch=2",
    )  # fmt: skip
    check_tokens_s(found, 2)
    assert found["workers"] == [f"w{index}" for index in range(workers)]
    assert (found["new_tokens"], found["prompt_tokens"], found["batch"]) == (900, 5, 2)
    # Both decode in the same steps, 900 in each of 2 rounds; the window lies within them.
    assert 0 < found["steps"] <= 2 * 902
    split = found["step_ms"]
    assert set(PHASES) <= split.keys()
    assert split["moe"] > 0
    assert 0 < split["moe: exchange"] <= split["moe"]


def test_prefill(tiny_mixtral: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = bench(
        capsys, "prefill", str(tiny_mixtral), "--workers=0", "--rounds=3", "--prompt-tokens=40", "--prefill-chunk=16"
    )  # fmt: skip
    check_tokens_s(found, 3)
    assert found["steps"] == 3 * 3  # 16 + 16 + 8 rows each
    assert found["prefill_chunk"] == 16


def test_text(tiny_mixtral: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "prefill", str(tiny_mixtral), "--workers=1", "--rounds=1", f"--backend={BACKEND}"]
    assert main([*argv, "--prompt-tokens=9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "1 worker," in lines[0]
    assert lines[1].startswith("prefill  ")
    assert "tokens/s, 1 rounds of 9 tokens in steps of 128" in lines[1]
    assert any(line.startswith("  attention ") and line.endswith(" %") for line in lines)


def test_what_does_not_fit_is_an_error(tiny_mixtral: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "decode", str(tiny_mixtral), "--workers=0", "--rounds=1", f"--backend={BACKEND}"]
    assert main([*argv, "--prompt-tokens=2000"]) == 1
    assert "colibri bench decode: " in capsys.readouterr().err
    assert main([*argv, "--kv-tokens=64", "--batch=4"]) == 1
    err = capsys.readouterr().err
    assert "--kv-tokens: expected at least 448, for 4 sequences at once, got 64" in err
    assert main(["bench", "decode", "/nowhere", "--workers=0"]) == 1
    assert "/nowhere" in capsys.readouterr().err
