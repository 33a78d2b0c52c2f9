"""Deployments as the command line makes them: real worker processes, real gRPC, one request at a time or
many."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from colibri.cluster.workers.launch import WorkerStatus
from colibri.coordinator.engine import EngineOptions
from colibri.deployment.assemble import assemble
from colibri.deployment.cluster import ClusterOptions
from colibri.deployment.devices import Machine
from colibri.deployment.options import DeploymentOptions
from colibri.deployment.pinning import PinningOptions
from colibri.deployment.running import Deployment
from colibri.transport.link import LinkKind
from tests.support.tiny_engine import Answer, ask, read

#: Who computes in the suites that start processes.
BACKEND = "cpu"
PROMPT = (5, 9, 300, 42, 42, 7, 199, 23, 11)


@contextlib.contextmanager
def deployed(
    model: Path | str,
    workers: int,
    *,
    replicas: int = 1,
    transport: str = "unix",
    link: LinkKind = LinkKind.GRPC,
    backend: str = BACKEND,
    compute_mode: str | None = None,
    cluster: ClusterOptions | None = None,
    log: Callable[[str], None] = print,
    devices: tuple[str, ...] = ("cpu",),
    mixed: bool = False,
    machine: Machine | None = None,
) -> Iterator[Deployment]:
    options = DeploymentOptions(
        model=model,
        workers=workers,
        replicas=replicas,
        compute_mode=compute_mode,
        backend=backend,
        transport=transport,
        link=link,
        engine=EngineOptions(kv_tokens=2048),
        cluster=cluster or ClusterOptions(),
        pinning=PinningOptions(share=True, devices=devices),
        mixed_numerics=mixed,
    )
    with assemble(options, log, machine=machine) as deployment:
        yield deployment


def answer(deployment: Deployment, prompt: Sequence[int] = PROMPT, max_tokens: int = 16) -> Answer:
    """Greedy; raises what ended the request."""
    return read(deployment.engine.submit(ask(prompt, max_tokens)))


def statuses(deployment: Deployment) -> tuple[WorkerStatus, ...]:
    assert deployment.launcher is not None
    return deployment.launcher.status()


def kill(pid: int) -> float:
    """SIGKILL; returns the monotonic time of it."""
    at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return at


def eventually(condition: Callable[[], bool], timeout_s: float, what: str) -> float:
    """Polls until it holds; returns the seconds it took. Fails after `timeout_s`."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < timeout_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.005)
    return time.monotonic() - begun


def is_alive(pid: int) -> bool:
    """Whether it runs: a zombie has ended."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
