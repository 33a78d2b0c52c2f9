"""Seats of a host: which worker has which (NUMA node, CPUs), settled among processes that do not know each other.

A host with room for N workers has N seats, each a lock file. The holder of the lock has the seat's share of the
host's pinning plan, and the kernel frees the lock with the process. So workers of one host never share cores,
whichever of them Ray starts first, and after any restart. Beside the lock lies a record of the worker (`record`),
by which the successor of a lost actor finds it. The CPU locks (`expert_service.cpu_locks`) keep workers of several
deployments apart.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from colibri.cluster.machine.pinning_plan import Wanted, WorkerPinning, plan_pinning
from colibri.cluster.machine.topology import Topology
from colibri.cluster.ray.file_lock import is_locked
from colibri.cluster.ray.options import Seating
from colibri.cluster.ray.record import WorkerRecord, read_record
from colibri.deadline import Clock
from colibri.errors import Busy, ConfigError

_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Seat:
    """index: from 0. lock: descriptor that holds it, for as long as a process has it open. record: file beside it."""

    index: int
    lock: int
    record: Path


def seat_folder(parent: Path | None = None) -> Path:
    """Returns the folder of this user's seats on this host. Raises ConfigError if somebody else made it."""
    folder = (parent or Path(tempfile.gettempdir())) / f"colibri-seats-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise ConfigError("seats", "a folder of this user", folder)
    return folder


def take_seat(
    indices: Sequence[int],
    folder: Path,
    wait_s: float,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Seat:
    """Returns the first free seat of those. Raises Busy if none is free within `wait_s` seconds: a predecessor may
    still be ending.
    """
    until = clock() + wait_s
    while True:
        for index in indices:
            lock = os.open(folder / f"seat-{index}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            return Seat(index, lock, _record(folder, index))
        if clock() >= until:
            raise Busy(
                f"seats: expected a free one of {len(indices)} on this host, got all taken, by processes "
                f"{', '.join(_owners(folder, indices))}"
            )
        sleep(_AGAIN_S)


def sitting(seats: int, folder: Path) -> list[WorkerRecord]:
    """Returns the workers that have a seat now."""
    found = []
    for index in range(seats):
        record = read_record(_record(folder, index))
        if record is not None and is_locked(folder / f"seat-{index}"):
            found.append(record)
    return found


def end_record(name: str, folder: Path) -> Path:
    """Returns the file that says how the worker's last incarnation ended."""
    return folder / f"ended-{quote(name, safe='')}.json"


def log_of(name: str, folder: Path) -> Path:
    """Returns the file of the worker's output."""
    return folder / f"worker-{quote(name, safe='')}.log"


def _record(folder: Path, index: int) -> Path:
    return folder / f"seat-{index}.json"


def seat_places(topology: Topology, seats: int, seating: Seating, *, gpus: bool) -> tuple[WorkerPinning, ...]:
    """Returns the pinning of each seat: the same plan in every process of a host. Raises as plan_workers."""
    wanted = Wanted(
        seats,
        _each(seating.numa_nodes, seats),
        _each(seating.cpu_threads, seats),
        gpus=gpus,
        share=seating.share,
    )
    return plan_pinning(topology, wanted, seating.threads).workers


def _each(values: Sequence[int | None], count: int) -> tuple[int | None, ...]:
    return tuple(values) * count if len(values) == 1 else tuple(values)


def _owners(folder: Path, indices: Sequence[int]) -> Sequence[str]:
    return [(folder / f"seat-{index}").read_text().strip() or "?" for index in indices]
