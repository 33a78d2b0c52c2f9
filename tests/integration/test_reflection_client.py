"""docs/examples/reflection_client.py against `colibri serve` with two workers: the numbers of `--workers 0`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from colibri.deployment.assemble import assemble
from colibri.deployment.options import DeploymentOptions
from colibri.generation import Tokens
from tests.support.clusters import BACKEND
from tests.support.serving import serving
from tests.support.tiny_engine import ask

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "reflection_client.py"
PROMPT = [5, 6, 7, 8, 9, 10, 11]


def test_same_numbers(tiny_mixtral: Path, tmp_path: Path) -> None:
    assert "colibri." not in EXAMPLE.read_text().replace("colibri.v1.", "")
    with serving(tiny_mixtral, tmp_path, "--workers=2") as served:
        command = [sys.executable, str(EXAMPLE), served.target, ",".join(map(str, PROMPT))]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    got = json.loads(run.stdout)
    options = DeploymentOptions(tiny_mixtral, 0, backend=BACKEND)
    with assemble(options, lambda text: None) as oracle:
        events = [e for e in oracle.engine.submit(ask(PROMPT)).events() if isinstance(e, Tokens)]
        row = np.random.default_rng(1).standard_normal((1, oracle.router.hidden), dtype=np.float32)
        rounded = ((row.view(np.uint32) + 0x7FFF + ((row.view(np.uint32) >> 16) & 1)) >> 16).astype(np.uint16)
        expected = oracle.router.forward(0, rounded).rows
    assert got["generate"]["ids"] == [token for event in events for token in event.ids]
    assert got["generate"]["receipts"] == [f"{r:016x}" for event in events for r in event.receipts]
    assert np.array_equal(np.array(got["forward"], np.float32), expected[0])
