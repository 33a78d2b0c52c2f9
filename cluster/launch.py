"""What a launcher is asked for, the command that starts a worker, and what is told of each worker."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from colibri.cluster.cpu_list import format_cpu_list
from colibri.cluster.pinning_plan import WorkerPin
from colibri.errors import InvalidInput

#: Milestones.
UP = "workers up"
LOADED = "experts loaded"


class WorkerState(enum.Enum):
    STARTING = "starting"
    LOADING = "loading"
    SERVING = "serving"
    WAITING = "waiting to be restarted"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What every worker of a deployment shares. Times in seconds.

    transport: 'unix' or 'tcp' (loopback, a free port). After a death the next life begins after `backoff_s`,
    doubled from death to death up to `backoff_max_s`; a life of `stable_s` starts the count anew.
    """

    model: Path
    compute_mode: str
    transport: str = "unix"
    backend: str = "cpu"
    ready_timeout_s: float = 60.0
    load_timeout_s: float = 1800.0
    stop_grace_s: float = 5.0
    backoff_s: float = 0.1
    backoff_max_s: float = 10.0
    stable_s: float = 60.0
    run_folder_parent: Path | None = None
    env: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.transport not in ("unix", "tcp"):
            raise InvalidInput("transport", "unix or tcp", self.transport)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """`incarnation`, `pid`, `target`: of the present or last life. `cpus_allowed`, `isa`, `experts`,
    `weight_bytes`: as the worker itself reports them once loaded. `deaths`: lives that ended by themselves;
    `last_error`: how the last did."""

    name: str
    state: WorkerState
    pin: WorkerPin
    incarnation: int = 0
    pid: int = 0
    target: str = ""
    cpus_allowed: tuple[int, ...] = ()
    oversubscribed: bool = False
    isa: str = ""
    experts: int = 0
    weight_bytes: int = 0
    deaths: int = 0
    last_error: str = ""


def worker_command(
    options: LaunchOptions, name: str, incarnation: int, listen: str, pin: WorkerPin
) -> list[str]:
    """Command line of `colibri expert` for one life of a worker that is to die with this process."""
    return [
        sys.executable,
        "-P",  # a file of the user's in the working directory must not stand in for a module
        "-m",
        "colibri.cli.main",
        "expert",
        str(options.model),
        f"--name={name}",
        f"--incarnation={incarnation}",
        f"--listen={listen}",
        f"--compute-mode={options.compute_mode}",
        f"--backend={options.backend}",
        f"--threads={pin.threads}",
        f"--cpus={format_cpu_list(pin.cpus)}",
        f"--numa-node={pin.numa_node}",
        f"--parent-pid={os.getpid()}",
        "--config=none",  # what the operator set for this process is not meant for its workers
        *(["--oversubscribed"] if pin.oversubscribed else []),
    ]
