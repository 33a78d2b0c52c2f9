"""What a launcher is asked for, the command that starts a worker, and what is reported of each worker."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from colibri.cluster.machine.cpu_list import format_cpu_list
from colibri.cluster.machine.netns import NetworkPlace
from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.workers.worker_state import Identities
from colibri.errors import InvalidInput
from colibri.expert_service.gpu_options import GpuOptions
from colibri.security.channel import ChannelSecurity
from colibri.security.plane_secret import PlaneSecret

#: Milestones.
UP = "workers up"
LOADED = "experts loaded"


@dataclass(frozen=True, slots=True)
class WorkerTls:
    """How workers serve with TLS.

    certificate, key, client_ca: paths on the workers' hosts; client_ca: of the certificates that their callers must
        show.
    channel: how this process reaches them.
    """

    certificate: Path
    key: Path
    client_ca: Path
    channel: ChannelSecurity


def start_timeout_s(workers: int) -> float:
    """Returns how long a worker's process may take until it answers: workers start at the same time and share the
    CPUs.
    """
    return 60.0 + 10.0 * workers


class WorkerState(enum.Enum):
    STARTING = "starting"
    LOADING = "loading"
    SERVING = "serving"
    WAITING = "waiting to be restarted"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What all workers of a deployment share. Times are in seconds.

    model: a folder, or the URL of a pack.
    transport: 'unix' or 'tcp' (loopback, a free port).
    backoff_s, backoff_max_s, stable_s: after a death the next incarnation begins after backoff_s, doubled from
        death to death up to backoff_max_s; one that lasts stable_s resets this.
    poll_s, hung_after_s: a serving worker is asked for its status every poll_s, and killed if it gives none for
        hung_after_s.
    memory: bytes that a worker's experts may take; None: no limit.
    allow_faults: workers can be made to misbehave.
    lease_s: a worker that no coordinator has called for this long ends itself; None: it ends with whoever started
        it.
    allow_cross_node: its CPUs and memory may lie on different NUMA nodes.
    networks: network namespaces by worker.
    backends: by worker, for those that do not compute on `backend`.
    gpu: how workers with a GPU compute.
    identities: what decides the workers' bits; None: not compared.
    tls: None: in clear.
    insecure: in clear even if other machines can reach them.
    secret: what workers without `tls` demand of every call; handed over by a descriptor, another one for each
        deployment.
    """

    model: Path | str
    compute_mode: str
    transport: str = "unix"
    backend: str = "cpu"
    ready_timeout_s: float = 60.0
    load_timeout_s: float = 1800.0
    stop_grace_s: float = 5.0
    backoff_s: float = 0.1
    backoff_max_s: float = 5.0
    stable_s: float = 10.0
    memory: int | None = None
    allow_faults: bool = False
    allow_cross_node: bool = False
    networks: Mapping[str, NetworkPlace] = field(default_factory=dict)
    lease_s: float | None = None
    poll_s: float = 2.0
    hung_after_s: float = 10.0
    run_folder_parent: Path | None = None
    env: Mapping[str, str] | None = None
    tls: WorkerTls | None = None
    insecure: bool = False
    secret: PlaneSecret | None = field(default_factory=PlaneSecret.draw)
    gpu: GpuOptions = field(default_factory=GpuOptions)
    backends: Mapping[str, str] = field(default_factory=dict)
    identities: Identities | None = None

    @property
    def channel(self) -> ChannelSecurity:
        """The security of channels to workers."""
        return ChannelSecurity(secret=self.secret) if self.tls is None else self.tls.channel

    @property
    def handed_secret(self) -> PlaneSecret | None:
        """The secret that each worker gets; None if certificates say who calls."""
        return self.secret if self.tls is None else None

    def __post_init__(self) -> None:
        if self.transport not in ("unix", "tcp"):
            raise InvalidInput("transport", "unix or tcp", self.transport)
        if not 0 < self.poll_s <= self.hung_after_s:
            raise InvalidInput("poll_s", f"above 0, up to hung_after_s ({self.hung_after_s:g})", self.poll_s)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The state of one worker.

    incarnation, pid, target: of the present or last incarnation.
    cpus_allowed to weight_bytes: as the worker itself reported them last.
    weight_pages: (NUMA node, sampled pages of weights there); node -1: not in memory.
    bytes_fetched: weights that it fetched from elsewhere.
    load_done, load_total: experts of the load that brings it up.
    served_since: monotonic seconds; 0 if it does not serve.
    deaths: incarnations that ended by themselves.
    last_error: how the last of them ended.
    reason: for its state; empty while it serves as it should.
    mends: how often its state was corrected while it served.
    last_mend: what was wrong the last time.
    surplus: unwanted experts that it held when it last answered.
    """

    name: str
    state: WorkerState
    pin: WorkerPinning
    incarnation: int = 0
    pid: int = 0
    target: str = ""
    cpus_allowed: tuple[int, ...] = ()
    oversubscribed: bool = False
    numa_node: int = -1
    weight_pages: tuple[tuple[int, int], ...] = ()
    crossing: str = ""
    isa: str = ""
    experts: int = 0
    weight_bytes: int = 0
    bytes_fetched: int = 0
    load_done: int = 0
    load_total: int = 0
    served_since: float = 0.0
    deaths: int = 0
    last_error: str = ""
    reason: str = ""
    mends: int = 0
    last_mend: str = ""
    surplus: int = 0


def worker_command(
    options: LaunchOptions,
    name: str,
    incarnation: int,
    socket: Path,
    pin: WorkerPinning,
    *,
    yielding: bool = False,
    listen: str | None = None,
    minded: bool = False,
) -> list[str]:
    """Returns the command line of `colibri expert` for one incarnation of a worker.

    socket: where it listens, if it does so on a unix socket.
    yielding: start at a low CPU priority.
    listen: where it listens on a network of several hosts.
    minded: it belongs to another process, which adds --parent-pid; otherwise it ends with this process.
    """
    place = options.networks.get(name)
    backend = options.backends.get(name, options.backend)
    listen = listen or (f"unix:{socket}" if options.transport == "unix" else "127.0.0.1:0")
    argv = [
        sys.executable,
        "-P",  # a file of the user's in the working directory must not stand in for a module
        "-m",
        "colibri.cli.main",
        "expert",
        str(options.model),
        "--config=none",  # neither this process's file nor its environment are meant for the worker
        "--json",
        "--log-plain",
        f"--name={name}",
        f"--incarnation={incarnation}",
        f"--listen={listen if place is None else place.listen}",
        f"--compute-mode={options.compute_mode}",
        f"--backend={backend}",
        f"--cpu-threads={1 if name in options.backends and backend == 'reference' else pin.threads}",
        f"--cpus={format_cpu_list(pin.cpus)}",
        f"--numa-node={pin.numa_node}",
        *([] if minded else [f"--parent-pid={os.getpid()}"]),
        *([] if options.lease_s is None else [f"--lease={options.lease_s:g}"]),
        *_on_gpu(options, pin),
        *(["--share-cpus"] if pin.oversubscribed else []),
        *(["--allow-cross-node"] if options.allow_cross_node else []),
        *(["--yielding-start"] if yielding else []),
        *(["--allow-faults"] if options.allow_faults else []),
        *([] if options.memory is None else [f"--memory={options.memory}"]),
        *_protection(options, place),
    ]
    # What a slow or cut network is to be tested with must not go around it.
    return argv if place is None else place.command([*argv, "--no-shared-memory"])


def _on_gpu(options: LaunchOptions, pin: WorkerPinning) -> list[str]:
    if not pin.gpu:
        return []
    # By its address: numbers depend on what is visible to a process.
    return [
        f"--device=cuda:{pin.gpu}",
        *(f"--{name}={value}" for name, value in options.gpu.given().items()),
    ]


def _protection(options: LaunchOptions, place: NetworkPlace | None) -> list[str]:
    tls = options.tls
    if tls is not None:
        return [f"--tls-cert={tls.certificate}", f"--tls-key={tls.key}", f"--client-ca={tls.client_ca}"]
    # Namespaces stand for a network only: they are for tests, and lie within this machine.
    return ["--insecure"] if options.insecure or place is not None else []
