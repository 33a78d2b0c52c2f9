"""`python -m benchmarks.reach TOPIC [--json FILE] [--only ID ...]`: measures a Reach table.

Exit 1 when a line is not met."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from benchmarks.table import run_table

#: topic -> module with `lines() -> list[Line]`
TOPICS = {
    "core": "benchmarks.core.lines",
    "surface": "benchmarks.surface",
    "failover": "benchmarks.failover.lines",
    "cuda": "benchmarks.cuda.lines",
    "cpu-kernels": "benchmarks.cpu_kernels.lines",
    "cluster": "benchmarks.cluster.lines",
    "hardening": "benchmarks.hardening",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.reach", description=__doc__)
    parser.add_argument("topic", choices=sorted(TOPICS))
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    parser.add_argument("--only", nargs="*", default=None, metavar="ID")
    args = parser.parse_args()
    lines = importlib.import_module(TOPICS[args.topic]).lines()
    if args.only is not None:
        unknown = set(args.only) - {line.id for line in lines}
        if unknown:
            parser.error(f"unknown ids {sorted(unknown)}; this topic has {[line.id for line in lines]}")
        lines = [line for line in lines if line.id in args.only]
    return run_table(args.topic, lines, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
