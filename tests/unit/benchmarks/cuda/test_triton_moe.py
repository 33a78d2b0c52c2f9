"""The Triton FFN that gpu-check compares with, interpreted on the CPU in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from benchmarks.cuda.source_tree import ROOT

_SCRIPT = """
from benchmarks.cuda import triton_moe, triton_timing
for counts in ((1,), (2, 1, 16), (17, 15), (64, 33, 31)):
    triton_timing.prepare(counts, 128, 192, "cpu", 1)[1]()
whole = triton_moe.ffn
triton_moe.ffn = lambda x, w13, w2, h, y, tiles, rows: whole(x, w13, w2, h, y, (*tiles[:2], tiles[2] - 1), rows)
try:
    triton_timing.prepare((3, 16), 128, 192, "cpu", 1)[1]()
except triton_timing.WrongResult as error:
    print(error)
"""


@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton")),
    reason="needs torch and triton, which Colibri itself does not",
)
def test_it_is_right_and_a_fault_is_told() -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("WRONG, not timed: expert ")
