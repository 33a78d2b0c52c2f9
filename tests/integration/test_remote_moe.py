"""remote_moe on a transformers Mixtral in an environment that has torch and only the client of Colibri's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import peers
from tests.conftest import TINY
from tests.support.serving import Serving, serving
from tests.support.torch_peer import torch_python

PROMPTS = [[5, 9, 300, 42, 42, 7, 199, 23, 11], [1], list(range(400))]
NEW = 12
#: Relative to the largest logit: two fp32 programs with other orders of sums.
BOUND = 1e-4


@pytest.fixture(scope="module")
def python() -> str:
    return torch_python()


@pytest.fixture(scope="module")
def served(python: str, tiny_mixtral: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("remote")
    # 400 rows do not fit into one call.
    with serving(
        tiny_mixtral, folder, "--compute-mode=fp32", "--workers=2", "--router-max-rows=150"
    ) as running:
        yield running


def run(python: str, model: Path, target: str, *options: str) -> Any:
    command = [python, peers.script("hf_remote_moe.py"), str(model), target, str(NEW), *options]
    result = subprocess.run(
        command,
        input=json.dumps(PROMPTS),
        env=peers.with_client(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_program_runs_on_with_its_experts_in_the_cluster(
    python: str, served: Serving, tiny_mixtral: Path
) -> None:
    found = run(python, tiny_mixtral, served.target)
    compared = 0
    for answer in found["answers"]:
        assert answer["error"] < BOUND
        clear = [margin > 10 * BOUND for margin in answer["margins"]]
        assert [got for got, sure in zip(answer["forced"], clear, strict=True) if sure] == [
            token for token, sure in zip(answer["local"], clear, strict=True) if sure
        ]
        # Its own loop: equal up to the first token that is not clear.
        upto = clear.index(False) if False in clear else len(clear)
        assert answer["remote"][:upto] == answer["local"][:upto]
        compared += upto
    assert compared >= NEW
    experts = TINY.layers * TINY.experts * (3 * TINY.ffn + 1) * TINY.hidden
    assert found["parameters"][0] - found["parameters"][1] == experts
    assert found["finite"] == [True, False], "a row with NaN is NaN again, its neighbour is not touched"
    assert "inference" in found["gradient"]
    assert "closed" in found["closed"].lower()
    assert found["repr"] == f"ColibriMoeBlock(layer=0, target={served.target})"
    assert set(found["remote_ms"]) == {str(layer) for layer in range(TINY.layers)}


@pytest.mark.parametrize(
    ("option", "refusal"),
    [
        ("--scramble-gate", f"model.layers[{TINY.layers - 1}].mlp.gate: expected the gate that "),
        ("--layers=1", f"model.config.layers: expected {TINY.layers}, as "),
    ],
)
def test_another_model_is_refused_and_left_alone(
    python: str, served: Serving, tiny_mixtral: Path, option: str, refusal: str
) -> None:
    found = run(python, tiny_mixtral, served.target, option)
    assert found["refused"].startswith(refusal)
    assert found["block"] == "MixtralSparseMoeBlock"
