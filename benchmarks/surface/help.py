"""How long `colibri --help` and `colibri VERB --help` take, from spawning the process to its end."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.table import Line, Outcome
from colibri.cli.verbs import VERBS

LIMIT_S = 0.150
_ROUNDS = 15
_COLIBRI = str(Path(sys.executable).with_name("colibri"))


def _once(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, timeout=30, check=True)
    return time.perf_counter() - start


def measure() -> Outcome:
    """The entry point as installed; the largest of all rounds counts. Beside it the bare interpreter, and the
    slowest verb's help (median)."""
    helps, bare = [], []
    _once([_COLIBRI, "--help"])
    for _ in range(_ROUNDS):
        helps.append(_once([_COLIBRI, "--help"]))
        bare.append(_once([sys.executable, "-c", "pass"]))
    verbs = {verb: statistics.median(_once([_COLIBRI, verb, "--help"]) for _ in range(3)) for verb in VERBS}
    slowest = max(verbs, key=verbs.__getitem__)
    return Outcome(
        f"{1e3 * statistics.median(helps):.0f} ms, at most {1e3 * max(helps):.0f}; "
        f"slowest verb's: {slowest} {1e3 * verbs[slowest]:.0f} ms",
        max(helps) < LIMIT_S,
        f"python -c pass {1e3 * statistics.median(bare):.0f} ms",
        {"help_s": helps, "bare_s": bare, "verbs_s": verbs},
    )


def lines() -> list[Line]:
    return [Line("help", "colibri --help, process start to end", "under 150 ms", measure)]
