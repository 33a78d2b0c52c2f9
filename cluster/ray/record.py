"""Records of running workers, on their host and at the coordinator, by which others find them later."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.ray.session import Host
from colibri.cluster.workers.worker_process import Ready

#: A record is a few hundred bytes; what is larger is not one.
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """deployment: which one it belongs to.
    fingerprint: of the options it was started with.
    minder: process id of its minder; 0 if that does not matter.
    """

    deployment: str
    fingerprint: str
    name: str
    ready: Ready
    place: WorkerPinning
    host: Host
    minder: int = 0

    @property
    def incarnation(self) -> int:
        return self.ready.incarnation

    def fields(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> WorkerRecord:
        """Raises KeyError, TypeError or ValueError for fields that are not a record."""
        place = dict(fields["place"])
        place["cpus"] = tuple(int(cpu) for cpu in place["cpus"])
        return cls(
            str(fields["deployment"]),
            str(fields["fingerprint"]),
            str(fields["name"]),
            Ready(**fields["ready"]),
            WorkerPinning(**place),
            Host(**fields["host"]),
            int(fields["minder"]),
        )


def write_whole(path: Path, fields: Mapping[str, Any]) -> None:
    """Writes JSON that only this user reads; a reader sees the old or the new file, never half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        json.dump(fields, file)
    draft.replace(path)


def try_write(path: Path, fields: Mapping[str, Any]) -> str:
    """Does as `write_whole` for a file that may be missing: a full disk must not end what runs. Returns why it failed,
    or nothing.
    """
    try:
        write_whole(path, fields)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def read_fields(path: Path) -> dict[str, Any] | None:
    """Returns the fields; None if there is no file, or something else."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def read_record(path: Path) -> WorkerRecord | None:
    """Returns the record, or None."""
    fields = read_fields(path)
    if fields is None:
        return None
    try:
        return WorkerRecord.of(fields)
    except (KeyError, TypeError, ValueError):
        return None
