"""What a Ray deployment's coordinator writes down, so that the next one can take its workers over: a file of its
machine.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from pathlib import Path

from colibri.cluster.ray.record import WorkerRecord, read_fields, try_write
from colibri.errors import ConfigError


class DeploymentState:
    """Raises ConfigError if another coordinator has the file. Any thread may call.

    path: the file, which belongs to one process at a time; None: keep nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._held = -1
        found = {}
        if path is not None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._held = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._held)
                raise ConfigError(
                    "--state", "a file of this coordinator alone", f"{path}, another's"
                ) from None
            found = read_fields(path) or {}
        self.deployment = str(found.get("deployment") or secrets.token_hex(8))
        self._workers = _records(found.get("workers"))
        given = [record.incarnation for record in self._workers.values()]
        stored = found.get("incarnation")
        #: The largest that any coordinator gave.
        self._incarnation = max([stored if isinstance(stored, int) else 0, *given], default=0)

    @property
    def workers(self) -> dict[str, WorkerRecord]:
        with self._lock:
            return dict(self._workers)

    @property
    def incarnation(self) -> int:
        return self._incarnation

    def begun(self, incarnation: int) -> None:
        """Notes that an incarnation was given, so that no other coordinator gives it again."""
        with self._lock:
            self._incarnation = max(self._incarnation, incarnation)
            self._write()

    def note(self, record: WorkerRecord) -> None:
        with self._lock:
            self._workers[record.name] = record
            self._write()

    def ended(self, name: str, incarnation: int) -> None:
        """Notes that an incarnation is over."""
        with self._lock:
            present = self._workers.get(name)
            if present is not None and present.incarnation == incarnation:
                del self._workers[name]
                self._write()

    def close(self) -> None:
        """Gives the file up. May be called twice."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _write(self) -> None:
        """Writes the file. If the disk is full, the next coordinator finds fewer workers and starts those anew."""
        if self._path is not None and self._held >= 0:
            try_write(
                self._path,
                {
                    "deployment": self.deployment,
                    "incarnation": self._incarnation,
                    "workers": {name: record.fields() for name, record in self._workers.items()},
                },
            )


def _records(fields: object) -> dict[str, WorkerRecord]:
    """Returns the records that can be read. Others are from another version; their workers' leases will end."""
    found = {}
    for name, each in fields.items() if isinstance(fields, dict) else ():
        try:
            found[str(name)] = WorkerRecord.of(each)
        except (KeyError, TypeError, ValueError):
            continue
    return found
