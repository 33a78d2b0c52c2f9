"""The actor that owns one worker process on the host where Ray put it. Imported by Ray on that host.

One instance, one life: once its worker has ended, it is spent, and Ray is told to restart it, which runs the
constructor, and with it the pinning, anew. It dies with its worker's launcher, and the worker with it
(PR_SET_PDEATHSIG). Its methods return plain values and raise nothing: errors of ours do not travel through Ray.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from colibri.cluster.child import Ready, WorkerProcess, describe_end
from colibri.cluster.launch import LaunchOptions, worker_command
from colibri.cluster.pinning_plan import WorkerPlace
from colibri.cluster.ray.options import Seating
from colibri.cluster.ray.seats import Seat, seat_folder, seat_places, take_seat
from colibri.cluster.ray.session import Host, this_host
from colibri.cluster.topology import discover
from colibri.errors import ColibriError
from colibri.expert_service.cpu_claims import host_claims
from colibri.expert_service.pinning import bind
from colibri.security.plane_secret import PlaneSecret

#: A predecessor's seat is free when the kernel has ended it.
_SEAT_S = 10.0


@dataclass(frozen=True, slots=True)
class Begun:
    """What a start came to. error: why there is no worker, or empty."""

    ready: Ready | None = None
    place: WorkerPlace | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """how: as colibri.cluster.child.describe_end says; said: the last lines of its stderr."""

    how: str
    said: str


class WorkerActor:
    """Of the worker `name`, on whichever host this runs; seating: of the host's workers; folder: of their locks.

    Raises ColibriError where there is no seat or the kernel does not let it be pinned: Ray does not restart that.
    """

    def __init__(
        self, name: str, options: LaunchOptions, seating: Seating, folder: Path | None = None
    ) -> None:
        # Ray pins nothing, and what a former instance pinned is gone with it. Before anything else: threads and memory
        # that come later stay where this puts them.
        host, seats, gpus = this_host()
        self._seat, self._place = _sit_down(seats, seating, gpus, folder)
        self._name = name
        self._options = options
        self._host = host
        self._lock = threading.Lock()
        self._spent = False
        self._process: WorkerProcess | None = None
        self._spawned = threading.Event()
        self._error = ""

    def look(self) -> tuple[bool, Host, WorkerPlace]:
        """(whether it is spent, its host, where it sits)."""
        return self._spent, self._host, self._place

    def begin(
        self, incarnation: int, yielding: bool, timeout_s: float, secret: PlaneSecret | None = None
    ) -> Begun:
        """Starts the worker and waits until it is ready. secret: what it demands of its callers. It comes with this
        call, and not with the constructor, whose arguments Ray keeps and may write to disk."""
        with self._lock:
            if self._spent:
                return Begun(error=f"{self._name}: this actor has had its worker")
            self._spent = True
        argv = worker_command(
            self._options,
            self._name,
            incarnation,
            Path(),
            self._place,
            yielding=yielding,
            listen=_listen(self._host.address),
        )
        # A worker dies with the thread that started it; Ray's threads come and go.
        threading.Thread(
            target=self._keep, args=(incarnation, argv, secret), name="colibri-keep", daemon=True
        ).start()
        self._spawned.wait(timeout_s)
        process = self._process
        if process is None:
            return Begun(error=self._error or f"{self._name}: not started within {timeout_s:g} s")
        try:
            return Begun(process.wait_ready(timeout_s), self._place)
        except ColibriError as error:
            process.kill()
            return Begun(error=error.message)

    def wait_end(self) -> Ended:
        """Returns when the worker has ended."""
        self._spawned.wait()
        process = self._process
        if process is None:
            return Ended(self._error, "")
        process.wait_exit()
        return Ended(describe_end(process.returncode), process.said)

    def end(self, force: bool) -> None:
        """Asks the worker to end, or ends it."""
        process = self._process
        if process is None:
            self._spent = True
        elif force:
            process.kill()
        else:
            process.terminate()

    def _keep(self, incarnation: int, argv: list[str], secret: PlaneSecret | None) -> None:
        try:
            process = WorkerProcess(
                self._name,
                incarnation,
                argv,
                log=_to_stderr,
                on_exit=lambda process: None,
                env=self._options.env,
                place=self._place,
                secret=secret,
            )
        except OSError as error:
            self._error = f"{self._name}: {error}"
            self._spawned.set()
            return
        self._process = process
        self._spawned.set()
        process.wait_exit()


def _sit_down(
    seats: int, seating: Seating, gpus: Sequence[int], folder: Path | None
) -> tuple[Seat, WorkerPlace]:
    """gpus: those that Ray gave, by their order on the PCI bus: the seat is that beside the first of them."""
    places = seat_places(discover(), seats, seating, gpus=bool(gpus))
    seat = take_seat(gpus[:1] or range(seats), seat_folder(folder), _SEAT_S)
    bind(places[seat.index], host_claims(os.environ))
    return seat, places[seat.index]


def _listen(address: str) -> str:
    return f"[{address}]:0" if ":" in address else f"{address}:0"


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
