"""Fresh processes that alternate: `colibri bench kernels --json`, and scripts that print one JSON object."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers import ROOT

RUNS = 7
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one figure over the runs."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def text(self, digits: int = 2) -> str:
        low, high = min(self.values), max(self.values)
        return f"{self.median:.{digits}f} [{low:.{digits}f}-{high:.{digits}f}]"


def ratios(mine: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Of paired runs, theirs over mine: how many times as fast."""
    return Spread(tuple(peer / own for own, peer in zip(mine, theirs, strict=True)))


def alternated(arms: Mapping[str, Sequence[str]], runs: int = RUNS) -> dict[str, list[Any]]:
    """name -> what each of its processes printed; every second round in reversed order. Raises RuntimeError with
    the end of what a process said when it fails."""
    found: dict[str, list[Any]] = {name: [] for name in arms}
    for index in range(runs):
        for name in list(arms) if index % 2 == 0 else list(arms)[::-1]:
            found[name].append(once(arms[name]))
    return found


def once(command: Sequence[str]) -> Any:
    # NumPy's BLAS starts threads that spin for some ten milliseconds, on the very CPUs that kernels are timed on.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-800:]}")
    return json.loads(done.stdout)


def bench_kernels(*arguments: str | float) -> list[str]:
    return [sys.executable, "-m", "colibri.cli.main", "bench", "kernels", "--json", *map(str, arguments)]


def module(name: str, *arguments: str | float) -> list[str]:
    return [sys.executable, "-m", name, *map(str, arguments)]
