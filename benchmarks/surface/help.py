"""How long `colibri --help`, a verb's help and a refusal take, from spawning the process to its end."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.table import Line, Outcome

LIMIT_S = 0.150
_ROUNDS = 15
_COLIBRI = str(Path(sys.executable).with_name("colibri"))
#: Usage errors, exit code 2: an unknown verb, an unknown option, a value out of range.
_REFUSED = (["serv", "m"], ["serve", "m", "--wrokers=3"], ["serve", "m", "--workers=-1"])


def _once(command: list[str], code: int = 0) -> float:
    start = time.perf_counter()
    result = subprocess.run(command, capture_output=True, timeout=30, check=False)
    took = time.perf_counter() - start
    if result.returncode != code:
        raise RuntimeError(f"{command}: exit code {result.returncode}, expected {code}")
    return took


def _verbs() -> list[str]:
    """All verbs: each has a page."""
    pages = Path(__file__).resolve().parents[2] / "docs" / "cli"
    return sorted(page.stem for page in pages.glob("*.md") if page.stem != "README")


def measure() -> Outcome:
    """The entry point as installed, by medians; beside it the processor time of `colibri --help`, which a busy machine
    changes less, and the bare interpreter."""
    helps, bare = [], []
    _once([_COLIBRI, "--help"])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(_ROUNDS):
        _once([_COLIBRI, "--help"])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / _ROUNDS
    for _ in range(_ROUNDS):
        helps.append(_once([_COLIBRI, "--help"]))
        bare.append(_once([sys.executable, "-c", "pass"]))
    verbs = {
        verb: statistics.median(_once([_COLIBRI, verb, "--help"]) for _ in range(5)) for verb in _verbs()
    }
    refused = {
        " ".join(words): statistics.median(_once([_COLIBRI, *words], 2) for _ in range(5))
        for words in _REFUSED
    }
    slowest, error = max(verbs, key=verbs.__getitem__), max(refused.values())
    help_s = statistics.median(helps)
    return Outcome(
        f"{1e3 * help_s:.0f} ms ({1e3 * cpu:.0f} ms of CPU); slowest of {len(verbs)} verbs: {slowest} "
        f"{1e3 * verbs[slowest]:.0f} ms; slowest refusal {1e3 * error:.0f} ms",
        max(help_s, error, *verbs.values()) < LIMIT_S,
        f"python -c pass {1e3 * statistics.median(bare):.0f} ms",
        {"help_s": helps, "help_cpu_s": cpu, "bare_s": bare, "verbs_s": verbs, "refused_s": refused},
    )


def lines() -> list[Line]:
    return [Line("help", "colibri --help, verbs' helps and refusals", "under 150 ms", measure)]
