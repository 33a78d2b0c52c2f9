"""The workers of a deployment: who starts them, what they may take, and what is done when they fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from colibri.cluster.machine.netns import NetworkPlace
from colibri.cluster.placing.rebalance_options import RebalanceOptions
from colibri.cluster.ray.options import RayOptions
from colibri.deployment.state import StateOptions
from colibri.expert_service.gpu_options import GpuOptions
from colibri.router_service.policy import FailoverPolicy

if TYPE_CHECKING:
    from colibri.cluster.workers.launch import WorkerTls
    from colibri.security.plane_secret import PlaneSecret

RESTART_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """How workers are started, protected, replaced and balanced.

    policy: when a second holder of an expert is asked.
    memory: bytes that each worker's experts may take; a load of more is refused. None: any.
    allow_faults: let tests make workers misbehave; never where strangers reach them.
    networks: by worker, the network namespace that it runs in; for tests.
    restart_pause_s: longest pause in seconds before a worker that died again and again is started anew.
    tls: certificates of the workers, and of the channels to them. None: without TLS.
    insecure: let workers listen without TLS where other machines reach them.
    secret: what workers demand of every call. None: a new secret for each start.
    ray: the Ray cluster that places the workers. None: they run on this machine.
    rebalance: when experts are moved by their measured loads.
    gpu: how workers with a GPU compute.
    experts_on: "cuda/FAMILY" of the workers' GPUs, as "cuda/mma-sm90". None: asked of this machine's GPUs.
    backends: by worker, a backend other than the deployment's; for tests.
    state: where operators' decisions are kept for the next start.
    """

    policy: FailoverPolicy = field(default_factory=FailoverPolicy)
    memory: int | None = None
    allow_faults: bool = False
    networks: Mapping[str, NetworkPlace] = field(default_factory=dict)
    restart_pause_s: float = RESTART_PAUSE_S
    tls: WorkerTls | None = None
    insecure: bool = False
    secret: PlaneSecret | None = None
    ray: RayOptions | None = None
    rebalance: RebalanceOptions = field(default_factory=RebalanceOptions)
    gpu: GpuOptions = field(default_factory=GpuOptions)
    experts_on: str | None = None
    backends: Mapping[str, str] = field(default_factory=dict)
    state: StateOptions = field(default_factory=StateOptions)
