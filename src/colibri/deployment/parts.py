"""Parts that every assembly needs: pinnings on this machine, the process's own backend, connections to workers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from colibri.cluster.machine.pinning_plan import PinningPlan
from colibri.cluster.machine.topology import Topology
from colibri.deployment.mix import Mix
from colibri.deployment.pinning import PinningOptions
from colibri.deployment.places import Places
from colibri.errors import ConfigError
from colibri.expert_service.cpu_locks import host_locks
from colibri.kernels.api import Backend, ComputeMode, GatePrecision
from colibri.kernels.factory import make_backend
from colibri.models.model import (
    Model,
)
from colibri.placement import Directory
from colibri.router_service.handshake import RouterIdentity
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.remote import RemoteExecutor
from colibri.transport.link import LinkKind
from colibri.wire.limits import FrameLimits


def machine_places(
    backend: str, threads: int | None, options: PinningOptions, log: Callable[[str], None], topology: Topology
) -> Places:
    """Returns a planner for any number of workers on this machine as this process may use it. The reference backend
    has one thread.
    """
    return Places(topology, options, threads_of(backend, threads), host_locks(os.environ), log)


def threads_of(backend: str, threads: int | None) -> int | None:
    return 1 if backend == "reference" and threads is None else threads


def open_backend(name: str, plan: PinningPlan) -> Backend:
    """Opens this process's own backend. Raises ConfigError for options that it cannot satisfy."""
    cpus = plan.coordinator_cpus if name == "cpu" else None
    try:
        return make_backend(name, threads=plan.coordinator_threads, cpus=cpus)
    except ValueError as error:
        raise ConfigError("backend", "a backend, threads and isa that this machine has", error) from error


def gate_precision(name: str, backend: str) -> GatePrecision:
    """Raises ConfigError for a precision that the backend does not have."""
    if backend == "cuda" and name != GatePrecision.FP32.value:
        raise ConfigError("--router-precision", "fp32, the only one of the cuda backend", name)
    return GatePrecision(name)


def connect_workers(
    model: Model,
    mode: ComputeMode,
    mix: Mix,
    directory: Directory,
    name: str,
    link: LinkKind,
    policy: FailoverPolicy,
    undo: contextlib.ExitStack,
    log: Callable[[str], None],
) -> RemoteExecutor:
    """Shakes hands with every worker of the directory. Raises the first refusal."""
    config = model.config
    limits = FrameLimits(config.layers, config.experts, config.top_k, config.hidden, mode.value)
    identity = RouterIdentity(
        name,
        model.model_hash(),
        mix.usual,
        model.pack_hash,
        others={} if mix.homes is None else mix.homes.workers,
    )
    executor = RemoteExecutor(identity, limits, directory, link=link, policy=policy, log=log)
    undo.callback(executor.close)
    for error in executor.connect().values():
        raise error
    return executor
