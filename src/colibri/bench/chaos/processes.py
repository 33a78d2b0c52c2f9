"""Send signals to worker processes that are not our children: to exactly the process that was meant, or to none.

A process id may have been reused since it was told, so a pidfd holds the process before its command line is
compared.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from colibri.errors import ColibriError
from colibri.v1 import operator_pb2 as pb


def send(worker: pb.WorkerInfo, number: signal.Signals) -> None:
    """Sends a signal. Raises ColibriError if that incarnation of the worker is over, or its process is not on this
    machine.
    """
    name = f"worker {worker.name}, incarnation {worker.incarnation}"
    try:
        pidfd = os.pidfd_open(worker.pid)
    except OSError as error:
        raise ColibriError(f"{name}: no process {worker.pid} ({error})", peer=worker.name) from None
    try:
        command = Path(f"/proc/{worker.pid}/cmdline").read_bytes().split(b"\0")
        if f"--incarnation={worker.incarnation}".encode() not in command:
            raise ColibriError(f"{name}: process {worker.pid} is another one", peer=worker.name)
        signal.pidfd_send_signal(pidfd, number)
    except OSError as error:
        raise ColibriError(f"{name}: {number.name} to {worker.pid}: {error}", peer=worker.name) from None
    finally:
        os.close(pidfd)
