"""Seats of a host: which worker sits on which (NUMA node, CPUs), settled among processes that do not know each other.

A host with N places has N seats, each a lock file; who holds the lock has the seat's share of the host's pinning
plan, and the kernel takes the lock from a process that ends. So workers of one host never share cores, whichever of
them Ray starts first, and again after any restart.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from colibri.deadline import Clock
from colibri.errors import Busy, ConfigError

_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Seat:
    """index: from 0. lock: descriptor that holds it, for as long as this process lives."""

    index: int
    lock: int


def seat_folder(parent: Path | None = None) -> Path:
    """Of this user on this host. Raises ConfigError where somebody else has made it."""
    folder = (parent or Path(tempfile.gettempdir())) / f"colibri-seats-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        raise ConfigError("seats", "a folder of this user", folder)
    return folder


def take_seat(
    seats: int,
    folder: Path,
    wait_s: float,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Seat:
    """The first free one of `seats`. Raises Busy when none is free within `wait_s`: a predecessor may still be
    ending."""
    until = clock() + wait_s
    while True:
        for index in range(seats):
            lock = os.open(folder / f"seat-{index}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            return Seat(index, lock)
        if clock() >= until:
            raise Busy(
                f"all {seats} seats of this host are taken, by pids {', '.join(_owners(folder, seats))}"
            )
        sleep(_AGAIN_S)


def _owners(folder: Path, seats: int) -> Sequence[str]:
    return [(folder / f"seat-{index}").read_text().strip() or "?" for index in range(seats)]
