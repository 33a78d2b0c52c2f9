"""`python -m colibri.cluster.ray.minder`: the parent of one worker on its host, which outlives the actor that asked
for it.

A worker that was the child of an actor would end with it, and an actor ends with its raylet, its driver, and Ray's own
outages. So the worker's parent is this small process in a process group of its own, whose parent is gone. It holds
the worker's seat, writes down who sits there, and at the end how the worker ended. The worker itself ends when no
coordinator has called for the length of its lease.

stdin: a Task as JSON. stdout: one line, a `WorkerRecord` or {"error": text}; then it is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.ray.record import WorkerRecord, try_write
from colibri.cluster.ray.session import Host
from colibri.cluster.workers.worker_process import WorkerProcess, describe_end
from colibri.errors import ColibriError
from colibri.security.plane_secret import PlaneSecret

#: A worker's log is begun anew when it is longer: what counts is its end.
_MAX_LOG = 16 << 20


@dataclass(frozen=True, slots=True)
class Task:
    """argv: the worker's command without --parent-pid.
    record, ended: files to write.
    log: gets what the worker says.
    lock: descriptor of the seat.
    secret: of the deployment.
    """

    deployment: str
    fingerprint: str
    name: str
    incarnation: int
    argv: list[str]
    place: dict[str, Any]
    host: dict[str, Any]
    ready_s: float
    lock: int
    record: str
    ended: str
    log: str
    secret: str | None = field(default=None, repr=False)

    def text(self) -> str:
        return json.dumps(asdict(self))


def main() -> int:
    task = Task(**json.loads(sys.stdin.read()))
    if os.fork():
        os._exit(0)  # Ray ends what is the child of an actor
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    fields = dict(task.place)
    fields["cpus"] = tuple(fields["cpus"])
    place, answer = WorkerPinning(**fields), sys.stdout
    with _open_log(Path(task.log)) as log:
        # On this thread, which lives as long as the worker: that dies with the thread that started it.
        process = WorkerProcess(
            task.name,
            task.incarnation,
            [*task.argv, f"--parent-pid={os.getpid()}"],
            log=lambda line: _write(log, line),
            on_exit=lambda process: None,
            place=place,
            secret=None if task.secret is None else PlaneSecret(task.secret),
        )
        signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
        _tell(answer, _begin(task, process, place))
        while not process.wait_exit(1.0):  # signals are handled in between
            pass
    try_write(
        Path(task.ended),
        {"incarnation": task.incarnation, "how": describe_end(process.returncode), "said": process.said},
    )
    Path(task.record).unlink(missing_ok=True)
    return 0


def _begin(task: Task, process: WorkerProcess, place: WorkerPinning) -> dict[str, Any]:
    try:
        ready = process.wait_ready(task.ready_s)
    except ColibriError as error:
        process.kill()
        return {"error": error.message}
    record = WorkerRecord(
        task.deployment, task.fingerprint, task.name, ready, place, Host(**task.host), os.getpid()
    )
    try_write(Path(task.record), record.fields())
    return record.fields()


def _tell(answer: TextIO, fields: dict[str, Any]) -> None:
    """Answers, and says nothing more: whoever asked may be gone."""
    with contextlib.suppress(OSError):
        answer.write(json.dumps(fields) + "\n")
        answer.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)


def _open_log(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > _MAX_LOG:
            path.unlink()
    return path.open("a", buffering=1, errors="replace")


def _write(log: TextIO, line: str) -> None:
    with contextlib.suppress(OSError):  # a full disk must not end the worker
        log.write(f"{time.strftime('%F %T')} {line}\n")


if __name__ == "__main__":
    sys.exit(main())
