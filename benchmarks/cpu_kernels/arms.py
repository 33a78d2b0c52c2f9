"""Arms of a comparison, each run in a fresh process: started, warmed up, measured, ended."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.peers import ROOT

PREFILL, PROMPT, NEW = 512, 32, 64


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens per second: of a prompt of PREFILL, and of NEW tokens after a prompt of PROMPT."""

    prefill: float
    decode: float


def measure_once(command: Sequence[str], vocab: int) -> Run:
    """One fresh process that speaks the lines of benchmarks/peers/hf_speed.py. Raises RuntimeError where it ends."""
    ids = np.random.Generator(np.random.SFC64(1)).integers(3, vocab, PREFILL).tolist()
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            _answer(process)
            _ask(process, ids[:PROMPT], 8)
            prefill = PREFILL / _ask(process, ids, 0)["prefill_s"]
            decode = NEW / _ask(process, ids[:PROMPT], NEW)["decode_s"]
        finally:
            process.kill()
    return Run(prefill, decode)


def alternated(arms: Mapping[str, Sequence[str]], vocab: int, rounds: int = 7) -> dict[str, list[Run]]:
    """name -> runs; every second round in reversed order."""
    found: dict[str, list[Run]] = {name: [] for name in arms}
    for index in range(rounds):
        for name in list(arms) if index % 2 == 0 else list(arms)[::-1]:
            found[name].append(measure_once(arms[name], vocab))
    return found


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of the paired ratios."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def ours(model: str, workers: int = 0) -> list[str]:
    return [sys.executable, "-m", "benchmarks.cpu_kernels.our_speed", model, str(workers)]


def _ask(process: subprocess.Popen[str], prompt: Sequence[int], new: int) -> dict[str, float]:
    if process.stdin is None:
        raise RuntimeError("an arm is started with pipes")
    process.stdin.write(json.dumps({"prompt": list(prompt), "new": new}) + "\n")
    process.stdin.flush()
    return _answer(process)


def _answer(process: subprocess.Popen[str]) -> dict[str, float]:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise RuntimeError(f"{process.args!r} ended with {process.wait(30)}")
    found: dict[str, float] = json.loads(line)
    return found
