"""The lines of `make reach TOPIC=core`, in the order of the table."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from benchmarks.core import agreement, demo_agreement, equality, flat, hop_line, layer_8x7b
from benchmarks.core.speed import decode_ratio
from benchmarks.table import Line, Outcome
from colibri.models.demo_model import build_demo_model
from colibri.models.home import colibri_home

ROOT = Path(__file__).resolve().parents[2]
DEMO_LIMIT_S = 15.0


def demo_time() -> Outcome:
    """From the command to the first byte of the answer, on a ready cache; the median of three."""
    build_demo_model(colibri_home(os.environ))
    found = []
    phases = ""
    for _ in range(3):
        start = time.monotonic()
        command = ["make", "--no-print-directory", "demo"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            if process.stdout is None or not process.stdout.read(1):
                raise RuntimeError("make demo ended without an answer")
            found.append(time.monotonic() - start)
            phases = process.communicate(timeout=60)[1].decode()
    median = sorted(found)[1]
    return Outcome(
        f"{median:.1f} s", median <= DEMO_LIMIT_S, "", {"runs": found, "phases": phases.splitlines()}
    )


def demo_decode() -> Outcome:
    model = build_demo_model(colibri_home(os.environ))
    return decode_ratio(model, workers=2, rounds=7, prompt=list(range(100, 132)), new=64)


def lines() -> list[Line]:
    return [
        Line(
            "equality-tiny",
            "equality sweep, tiny Mixtrals",
            "0 of at least 400 cells differ",
            equality.measure_tiny,
        ),
        Line(
            "equality-demo",
            "equality sweep, demo model",
            "0 of at least 30 cells differ",
            equality.measure_demo,
        ),
        Line(
            "logits-tiny",
            "logits and greedy tokens against transformers fp32, tiny Mixtrals",
            "1e-4 of the largest logit; clear tokens equal",
            agreement.measure_tiny,
        ),
        Line(
            "logits-demo",
            "demo model against transformers fp32, 5 prompts x 48 tokens",
            "clear tokens equal; KL of bf16 published",
            demo_agreement.measure,
        ),
        Line(
            "layer-8x7b",
            "one MoE layer at Mixtral-8x7B shapes",
            "within the mode's bound",
            layer_8x7b.measure,
        ),
        Line("demo-time", "make demo on a ready cache, command to first token", "at most 15 s", demo_time),
        Line(
            "demo-decode",
            "bf16 decode of the demo model, 2 workers",
            "at least 1.5x transformers",
            demo_decode,
        ),
        Line(
            "hop", "gRPC hop, 1 row, no compute, 1 worker", "at most 2x a bare stream echo", hop_line.measure
        ),
        Line("flat", "file descriptors and threads", "flat in the number of experts", flat.measure),
    ]
