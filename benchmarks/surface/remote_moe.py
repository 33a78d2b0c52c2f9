"""A transformers program before and after `remote_moe`: the same greedy tokens, and what a layer costs more.

The demo model in fp32 under transformers' own generate, its experts in `colibri serve` with two workers on the same
two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.core.agreement import BOUND
from benchmarks.core.demo_agreement import prompt_ids
from benchmarks.table import Line, Outcome
from colibri.models.demo_model import build_demo_model
from colibri.models.home import colibri_home

NEW = 32
_TIMEOUT_S = 900


def measure() -> Outcome:
    model = build_demo_model(colibri_home(os.environ))
    found = _run(model, prompt_ids(model))
    equal = compared = whole = 0
    for answer in found["answers"]:
        clear = [margin > 10 * BOUND for margin in answer["margins"]]
        pairs = zip(answer["local"], answer["forced"], clear, strict=True)
        same = [local == forced for local, forced, sure in pairs if sure]
        compared += len(same)
        equal += sum(same)
        upto = clear.index(False) if False in clear else len(clear)
        whole += answer["local"][:upto] == answer["remote"][:upto]
    error = max(answer["error"] for answer in found["answers"])
    local, remote = found["local_ms"], list(found["remote_ms"].values())
    mean = sum(remote) / len(remote)
    answers = len(found["answers"])
    return Outcome(
        f"{equal} of {compared} clear tokens equal, {whole} of {answers} answers; worst logit error {error:.1e}; "
        f"a layer of one row {mean:.2f} ms, local {local:.2f} ms: {mean - local:+.2f} ms",
        equal == compared and whole == answers and error < BOUND,
        "its own local run, fp32",
        {"remote_ms": found["remote_ms"], "local_ms": local, "parameters": found["parameters"]},
    )


def _run(model: Path, prompts: Sequence[Sequence[int]]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        listen = f"unix:{folder}/s"
        serve = [sys.executable, "-m", "colibri.cli.main", "serve", str(model), f"--listen={listen}"]
        with subprocess.Popen(
            [*serve, "--compute-mode=fp32", "--workers=2"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as server:
            try:
                if server.stdout is None or not server.stdout.readline():
                    raise RuntimeError("colibri serve did not start")
                script = [peers.python(), peers.script("hf_remote_moe.py"), str(model), listen, str(NEW)]
                result = subprocess.run(
                    script,
                    input=json.dumps(prompts),
                    env=peers.with_client(),
                    stdout=subprocess.PIPE,
                    text=True,
                    timeout=_TIMEOUT_S,
                    check=True,
                )
                return json.loads(result.stdout)
            finally:
                server.terminate()


def lines() -> list[Line]:
    return [
        Line(
            "remote-moe",
            "transformers program with remote_moe, demo model, 5 prompts x 32 tokens",
            "greedy tokens equal to its own local run where margins allow; overhead per layer reported",
            measure,
        )
    ]
