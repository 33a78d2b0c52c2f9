"""File descriptors and threads of every process, with few experts and with many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.core.equality import TINY, Load, Place, Sizes, deployed, receipts, requests
from benchmarks.table import Outcome
from colibri.cluster.workers.expert_calls import ask_status
from colibri.kernels.cpu.backend import supported_isas
from colibri.models.random_mixtral import random_mixtral

FEW, MANY = 4, 128
#: grpc starts and ends polling threads as it pleases.
SLACK = 2


@dataclass(frozen=True, slots=True)
class Held:
    """Open file descriptors and threads of the coordinator and of all workers together, after some answers."""

    coordinator_fds: int
    coordinator_threads: int
    worker_fds: int
    worker_threads: int


def held(experts: int) -> Held:
    """Counted in this process and its two workers after a crowd's answers."""
    with tempfile.TemporaryDirectory() as folder:
        model = random_mixtral(Path(folder, "model"), replace(TINY, experts=experts))
        place = Place(0, "bf16", 2, "unix", 1, supported_isas()[0])
        with deployed(model, place) as deployment:
            receipts(deployment, Load(True, 64, 16), requests(Sizes(400, 60, 4)))
            endpoints = deployment.directory.current().endpoints.values()
            status = [
                ask_status(endpoint.target, endpoint.name, 10.0, security=endpoint.security)
                for endpoint in endpoints
            ]
            return Held(
                len(os.listdir("/proc/self/fd")),
                len(os.listdir("/proc/self/task")),
                sum(reply.open_fds for reply in status),
                sum(reply.threads for reply in status),
            )


def measure() -> Outcome:
    """Each count in a fresh process: grpc keeps some files and threads of its own for good."""
    found = []
    for experts in (FEW, MANY):
        command = [sys.executable, "-m", "benchmarks.core.flat", str(experts)]
        run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        found.append(json.loads(run.stdout))
    few, many = found
    extra = max(abs(many[name] - few[name]) for name in Held.__slots__)
    return Outcome(
        f"{FEW} experts a layer: {few}; {MANY}: {many}", extra <= SLACK, f"at most {SLACK} apart (grpc's own)"
    )


if __name__ == "__main__":
    print(json.dumps(asdict(held(int(sys.argv[1])))))
