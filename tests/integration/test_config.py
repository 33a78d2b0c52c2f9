"""Options from a file and from the environment reach the processes that they are meant for, and no others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from colibri.cli.main import main
from colibri.client import Client
from tests.support.clusters import BACKEND

COLIBRI = [sys.executable, "-m", "colibri.cli.main"]


def test_a_server_from_a_file(tiny_mixtral: Path, tmp_path: Path) -> None:
    """The file's workers, the environment's context, the flag's address; the workers take none of it."""
    config = tmp_path / "colibri.yaml"
    config.write_text(
        f"model: {tiny_mixtral}\nbackend: {BACKEND}\nworkers: 3\nserve:\n  json: true\n  compute-mode: fp32\n"
        "expert:\n  name: taken-by-mistake\n"
    )
    environ = {
        **os.environ,
        "COLIBRI_CONFIG": str(config),
        "COLIBRI_KV_TOKENS": "64",
        "COLIBRI_LISTEN": "nonsense",
        "COLIBRI_COMPUTE_MODE": "bf16",
        "COLIBRI_ALLOW_FAULTS": "true",
        "COLIBRI_NAME": "taken-by-mistake",
    }
    command = [*COLIBRI, "serve", f"--listen=unix:{tmp_path}/s", "--compute-mode=fp32", "--share-cpus"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        try:
            assert ready["workers"] == ["w0", "w1", "w2"]
            with Client(ready["target"]) as client:
                info = client.model_info()
                assert info.compute_mode == "fp32"
                assert info.max_positions == 64
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_config_show_tells_what_serve_would_do(tiny_mixtral: Path, tmp_path: Path) -> None:
    config = tmp_path / "colibri.yaml"
    config.write_text(f"model: {tiny_mixtral}\nworkers: 0\nbench: {{rounds: 1}}\n")
    environ = {**os.environ, "COLIBRI_CONFIG": str(config), "COLIBRI_NEW_TOKENS": "400"}
    shown = run(environ, "config", "show", "--resolved", "--json", "bench", "decode", f"--backend={BACKEND}")
    found = {key: item["value"] for key, item in shown["bench decode"].items()}
    measured = run(environ, "bench", "decode", f"--backend={BACKEND}", "--json")
    assert (found["workers"], found["rounds"], found["new-tokens"]) == (0, 1, 400)
    assert measured["workers"] == []
    assert len(measured["tokens_s"]["rounds"]) == found["rounds"]
    assert measured["new_tokens"] == found["new-tokens"]


def run(environ: dict[str, str], *arguments: str) -> dict[str, Any]:
    result = subprocess.run(
        [*COLIBRI, *arguments], capture_output=True, text=True, timeout=60, env=environ, check=False
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_inspect_tells_the_ids_that_a_deployment_has(
    tiny_mixtral: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tiny_mixtral), "--json"]) == 0
    inspected = json.loads(capsys.readouterr().out)
    for mode in ("fp32", "bf16"):
        bench = ["bench", "prefill", str(tiny_mixtral), "--workers=0", "--rounds=1", "--prompt-tokens=4"]
        assert main([*bench, f"--compute-mode={mode}", "--json", "--backend=cpu"]) == 0
        measured = json.loads(capsys.readouterr().out)
        assert measured["engine_numerics_id"] == inspected["numerics"][mode]["engine_numerics_id"]
        assert measured["model_hash"] == inspected["model_hash"]
