"""File descriptors and threads of every process, with few experts and with many."""

from __future__ import annotations

import os
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.core.equality import TINY, Load, Place, Sizes, deployed, receipts, requests
from benchmarks.table import Outcome
from colibri.cluster.expert_calls import ask_status
from colibri.kernels.cpu.backend import supported_isas
from colibri.models.random_mixtral import random_mixtral


@dataclass(frozen=True, slots=True)
class Held:
    """Open file descriptors and threads of the coordinator and of all workers together, after some answers."""

    coordinator_fds: int
    coordinator_threads: int
    worker_fds: int
    worker_threads: int


def held(experts: int, workers: int = 2) -> Held:
    with tempfile.TemporaryDirectory() as folder:
        model = random_mixtral(Path(folder, "model"), replace(TINY, experts=experts))
        place = Place(0, "bf16", workers, "unix", 1, supported_isas()[0])
        before_fds, before_threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        with deployed(model, place) as deployment:
            receipts(deployment, Load(True, 64, 16), requests(Sizes(400, 60, 4)))
            endpoints = deployment.directory.current().endpoints.values()
            status = [ask_status(endpoint.target, endpoint.name, 10.0) for endpoint in endpoints]
            return Held(
                len(os.listdir("/proc/self/fd")) - before_fds,
                threading.active_count() - before_threads,
                sum(reply.open_fds for reply in status),
                sum(reply.threads for reply in status),
            )


def measure() -> Outcome:
    held(4)  # what the first deployment of a process leaves open for good (grpc's own) is not the experts'
    few, many = held(4), held(128)
    same = all(getattr(few, name) == getattr(many, name) for name in Held.__slots__)
    return Outcome(f"4 experts a layer {few}, 128 {many}".replace("Held", ""), same)
