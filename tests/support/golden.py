"""Golden receipts: what the kernels gave when the numerics revision was set. `python
tests/support/golden.py` rewrites.

A difference without a new NUMERICS_REVISION is a broken promise: mend the code, or bump the revision and
rewrite.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from colibri.coordinator.request import GenerationRequest
from colibri.deadline import Deadline
from colibri.deployment.assemble import assemble
from colibri.deployment.options import DeploymentOptions
from colibri.generation import Tokens
from colibri.kernels.api import ComputeMode, SamplingParams
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.numerics import NUMERICS_REVISION

FILE = Path(__file__).resolve().parents[1] / "golden" / "receipts.json"
_BASE = RandomMixtral(
    hidden=64, ffn=96, layers=3, experts=4, heads=4, kv_heads=2, vocab=400, max_positions=512
)
MODELS = {
    "plain": _BASE,
    "window, odd ffn, top-3": replace(
        _BASE,
        hidden=80,
        ffn=97,
        experts=8,
        top_k=3,
        heads=5,
        kv_heads=1,
        head_dim=24,
        sliding_window=20,
        seed=1,
    ),
    "fp32, tied, top-4": replace(
        _BASE, experts=16, top_k=4, heads=6, head_dim=16, tied=True, dtype="fp32", seed=2
    ),
    "fp16": replace(_BASE, dtype="fp16", seed=3),
}
#: greedy, and every sampling option at once
SAMPLING = (
    SamplingParams(),
    SamplingParams(temperature=0.9, top_k=50, top_p=0.95, seed=12345678901234567890),
)
PROMPT_TOKENS, NEW_TOKENS = 90, 8


def receipts(model: Path, mode: ComputeMode) -> list[list[str]]:
    """Hexadecimal receipts of the probe prompt, one list for each sampling, by `--workers 0`."""
    prompt = np.random.Generator(np.random.SFC64(5)).integers(3, 400, PROMPT_TOKENS).astype(np.uint32)
    answers = []
    options = DeploymentOptions(model, 0, compute_mode=mode.value, threads=1)
    with assemble(options, lambda text: None) as deployment:
        for index, sampling in enumerate(SAMPLING):
            request = GenerationRequest(
                request_id=f"golden-{index}",
                prompt_ids=prompt,
                sampling=sampling,
                max_tokens=NEW_TOKENS,
                stop_ids=frozenset(),
                resumed_ids=np.zeros(0, np.uint32),
                receipt=0,
                priority=0,
                deadline=Deadline.after(60),
            )
            events = deployment.engine.submit(request).events()
            answers.append(
                [f"{r:016x}" for event in events if isinstance(event, Tokens) for r in event.receipts]
            )
    return answers


def main() -> int:
    found: dict[str, dict[str, list[list[str]]]] = {}
    for name, params in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            model = random_mixtral(Path(folder, "model"), params)
            found[name] = {mode.value: receipts(model, mode) for mode in ComputeMode}
    FILE.write_text(json.dumps({"revision": NUMERICS_REVISION, "receipts": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
