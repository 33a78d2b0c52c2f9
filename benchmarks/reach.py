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
