"""The lines of `make reach TOPIC=cluster`, in the order of the table."""

from __future__ import annotations

from benchmarks.cluster import mtls, planner, ray_hosts
from benchmarks.table import Line


def lines() -> list[Line]:
    return [*ray_hosts.lines(), *planner.lines(), *mtls.lines()]
