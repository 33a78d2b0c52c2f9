"""The Reach line over benchmarks.hop: the router's whole executor against a bare stream echo of the same bytes."""

from __future__ import annotations

import statistics

from benchmarks.hop import measure as measure_hop
from benchmarks.table import Outcome


def measure() -> Outcome:
    times = measure_hop(1, "tcp", 10, 200)
    medians = {name: statistics.median(values) * 1e6 for name, values in times.items()}
    ratio = medians["executor"] / medians["echo"]
    text = ", ".join(f"{name} {value:.0f} us" for name, value in medians.items())
    return Outcome(f"{ratio:.2f}x ({text})", ratio <= 2.0, "bare Python gRPC stream echo")
