"""The actor through which a worker on a host that Ray chose is started, found again, and ended. Imported by Ray there.

The worker is not its child: it belongs to a minder (`minder`), and lives on when this actor, its raylet or all of Ray
end. An actor that comes later takes it over by name and incarnation (`adopt`), or replaces it (`begin`). Its methods
return plain values and raise nothing: errors of ours do not travel through Ray.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from colibri.cluster.machine.topology import discover
from colibri.cluster.ray.minder import Task
from colibri.cluster.ray.options import Seating
from colibri.cluster.ray.record import WorkerRecord, read_fields
from colibri.cluster.ray.seats import Seat, end_record, log_of, seat_folder, seat_places, sitting, take_seat
from colibri.cluster.ray.session import Host, this_host
from colibri.cluster.workers.launch import LaunchOptions, worker_command
from colibri.errors import ColibriError
from colibri.security.plane_secret import PlaneSecret

#: A predecessor's seat is free when the kernel has ended it.
_SEAT_S = 10.0
#: A minder starts the interpreter before its worker does.
_MINDER_S = 20.0


@dataclass(frozen=True, slots=True)
class Identity:
    """deployment: which one this worker belongs to. fingerprint: of its options."""

    deployment: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Begun:
    """The result of starting a worker or taking it over. error: why there is no worker, or empty."""

    record: WorkerRecord | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker ended. how: see worker_process.describe_end; said: the last lines of its stderr."""

    how: str
    said: str


class WorkerActor:
    """The actor of the worker `name`, on whichever host it runs.

    seating: of the host's workers.
    folder: of their locks and records.
    """

    def __init__(
        self,
        name: str,
        options: LaunchOptions,
        seating: Seating,
        identity: Identity,
        folder: Path | None = None,
    ) -> None:
        self._name = name
        self._options = options
        self._seating = seating
        self._identity = identity
        self._folder = seat_folder(folder)
        self._host, self._seats, self._gpus = this_host()
        self._lock = threading.Lock()
        self._record: WorkerRecord | None = None

    def look(self) -> Host:
        return self._host

    def begin(
        self, incarnation: int, yielding: bool, timeout_s: float, secret: PlaneSecret | None = None
    ) -> Begun:
        """Starts the worker and waits until it is ready. First ends whatever has its name here.

        secret: what it demands of its callers. It comes with this call and not with the constructor, whose
            arguments Ray keeps and may write to disk.
        """
        try:
            for record in self._own():
                _kill(record.minder, signal.SIGKILL)
            places = seat_places(discover(), self._seats, self._seating, gpus=bool(self._gpus))
            seat = take_seat(self._gpus[:1] or range(self._seats), self._folder, _SEAT_S)
        except (ColibriError, OSError) as error:
            return Begun(error=f"{self._name}: {error}")
        place = places[seat.index]
        try:
            argv = worker_command(
                self._options,
                self._name,
                incarnation,
                Path(),
                place,
                yielding=yielding,
                listen=_listen(self._host.address),
                minded=True,
            )
            task = Task(
                self._identity.deployment,
                self._identity.fingerprint,
                self._name,
                incarnation,
                argv,
                asdict(place),
                asdict(self._host),
                timeout_s,
                seat.lock,
                str(seat.record),
                str(end_record(self._name, self._folder)),
                str(log_of(self._name, self._folder)),
                None if secret is None else secret.text,
            )
            return self._start(task, seat)
        finally:
            os.close(seat.lock)  # the minder has it

    def adopt(self, incarnation: int) -> Begun:
        """Takes over that incarnation, if it is here."""
        for record in self._own():
            if record.incarnation == incarnation:
                with self._lock:
                    self._record = record
                return Begun(record)
        return Begun(error=f"{self._name}: life {incarnation} is not on {self._host}")

    def wait_end(self) -> Ended:
        """Waits for the end of the worker that was begun or taken over last."""
        with self._lock:
            record = self._record
        if record is None:
            return Ended("was never started", "")
        _wait_gone(record.minder, None)
        fields = read_fields(end_record(self._name, self._folder)) or {}
        if fields.get("incarnation") != record.incarnation:
            return Ended("was killed together with its minder", "")
        return Ended(str(fields.get("how")), str(fields.get("said")))

    def end(self, force: bool) -> None:
        """Asks the worker to end, or forces it."""
        with self._lock:
            record = self._record
        if record is not None and _alive(record.minder):
            if force:
                _kill(record.ready.pid, signal.SIGKILL)
            else:
                _kill(record.minder, signal.SIGTERM)

    def _own(self) -> list[WorkerRecord]:
        return [
            record
            for record in sitting(self._seats, self._folder)
            if (record.deployment, record.name) == (self._identity.deployment, self._name)
        ]

    def _start(self, task: Task, seat: Seat) -> Begun:
        minder = subprocess.Popen(
            [sys.executable, "-P", "-m", "colibri.cluster.ray.minder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[seat.lock],
            # A group of its own: what ends this actor's group leaves it alone. No session: see WorkerProcess.
            process_group=0,
        )
        try:
            out, _ = minder.communicate(task.text().encode(), task.ready_s + _MINDER_S)
            fields = json.loads(out)
            if "error" in fields:
                return Begun(error=str(fields["error"]))
            record = WorkerRecord.of(fields)
        except subprocess.TimeoutExpired:
            minder.kill()
            return Begun(
                error=f"{self._name}: its minder did not answer within {task.ready_s + _MINDER_S:g} s"
            )
        except (ValueError, KeyError, TypeError, OSError) as error:
            return Begun(error=f"{self._name}: its minder failed: {error!r}")
        with self._lock:
            self._record = record
        return Begun(record)


def _alive(pid: int) -> bool:
    return not _wait_gone(pid, 0.0)


def _wait_gone(pid: int, timeout_s: float | None) -> bool:
    """Waits until the process has ended. Returns whether it has. timeout_s: None: no bound."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
    finally:
        os.close(fd)


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _listen(address: str) -> str:
    return f"[{address}]:0" if ":" in address else f"{address}:0"
