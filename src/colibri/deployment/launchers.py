"""Choose the launcher: subprocesses of this machine, or Ray on the hosts of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.ray.options import RayOptions, Seating
from colibri.cluster.workers.expert_calls import WorkerProgress
from colibri.cluster.workers.launch import LaunchOptions
from colibri.cluster.workers.launcher import Launcher
from colibri.cluster.workers.local import LocalLauncher
from colibri.placement import Placement


def gpu_workers(ray: RayOptions, log: Callable[[str], None]) -> int:
    """Returns how many workers could have a GPU of their own on Ray's hosts. Raises ColibriError if none could in
    time.
    """
    from colibri.cluster.ray.gpus import count_gpu_workers
    from colibri.cluster.ray.session import connect, living_nodes

    leave = connect(ray.address)
    try:
        return count_gpu_workers(ray, living_nodes, log)
    finally:
        leave()


def make_launcher(
    ray: RayOptions | None,
    options: LaunchOptions,
    placement: Placement,
    pins: Sequence[WorkerPinning],
    replicas: int,
    seating: Seating,
    *,
    on_gpu: bool,
    progress: WorkerProgress,
    milestone: Callable[[str], None],
    log: Callable[[str], None],
) -> Launcher:
    """Returns the launcher.

    ray: None: this machine. Ray is imported only if it is asked for.
    pins: of local workers; on other hosts the actors choose, as `seating` asks.
    replicas: of an expert, on that many hosts.
    on_gpu: each worker has a GPU.
    """
    if ray is None:
        return LocalLauncher(options, placement, pins, progress=progress, milestone=milestone, log=log)
    from colibri.cluster.ray.launcher import RayLauncher

    ray = replace(ray, hosts=replicas, seating=seating, gpus=int(on_gpu))
    return RayLauncher(options, placement, ray, progress=progress, milestone=milestone, log=log)
