"""Describe a deployment for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colibri.cluster.machine.cpu_list import format_cpu_list
from colibri.deployment.sizes import size

if TYPE_CHECKING:
    from colibri.deployment.running import Deployment


def describe(deployment: Deployment) -> list[str]:
    """Returns a line for each process that computes."""
    mode, isa = deployment.numerics.expert.deployment_mode, deployment.backend.isa
    kind = deployment.numerics.expert.weight_format
    weights = "" if kind == mode else f", {kind} experts"
    lines = [f"coordinator      {isa}, {deployment.backend.threads} threads, {mode}{weights}"]
    for status in () if deployment.launcher is None else deployment.launcher.status():
        shared = ", OVERSUBSCRIBED" if status.oversubscribed else ""
        node = f"memory of node {status.numa_node}, " if status.numa_node >= 0 else ""
        lines.append(
            f"worker {status.name:<9} {status.isa}, {status.pin.threads} threads, pid {status.pid}, "
            f"CPUs {format_cpu_list(status.cpus_allowed)}, {node}{status.experts} experts, "
            f"{size(status.weight_bytes)}{shared}"
        )
    return lines
