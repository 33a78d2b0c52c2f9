"""A `colibri serve` of our own, as a process: started, heard ready, ended. Every wait is bounded."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from colibri.bench.chaos.network.layout import Place
from colibri.bench.chaos.plan import ServeSpec
from colibri.errors import ColibriError, DeadlineExpired

_TAIL_LINES = 12
_KILL_S = 10.0


@dataclass(frozen=True, slots=True)
class Serving:
    target: str
    pid: int


def serve_command(
    model: Path, spec: ServeSpec, places: Sequence[Place] = (), known_by: Sequence[str] = ()
) -> list[str]:
    """places: namespaces of workers, where they have any; known_by: options that say how callers of workers are
    known."""
    netns = [f"--worker-netns={place.worker}={place.namespace},{place.address}" for place in places]
    return [
        sys.executable,
        "-P",
        "-m",
        "colibri.cli.main",
        "serve",
        str(model),
        "--listen=127.0.0.1:0",
        "--json",
        "--config=none",
        f"--workers={spec.workers}",
        f"--replicas={spec.replicas}",
        "--allow-faults",
        "--share-cpus",  # what a plan asks for is not bounded by this machine's cores
        *netns,
        *known_by,
        *spec.options,
    ]


@contextlib.contextmanager
def serving(
    command: Sequence[str],
    *,
    log: Callable[[str], None] = lambda line: None,
    ready_s: float = 180.0,
    grace_s: float = 15.0,
) -> Iterator[Serving]:
    """Raises ColibriError when it does not come up, with the last that it said. log: gets its stderr."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    ready: list[bytes] = []
    heard = threading.Event()
    threads = [
        threading.Thread(target=_read_ready, args=(process, ready, heard), name="colibri-ready", daemon=True),
        threading.Thread(target=_read_log, args=(process, tail, log), name="colibri-log", daemon=True),
    ]
    try:
        for thread in threads:
            thread.start()
        in_time = heard.wait(ready_s)
        if not ready:
            why = f"was not ready within {ready_s:g} s" if not in_time else "ended before it was ready"
            raise DeadlineExpired(f"colibri serve (pid {process.pid}) {why}: " + " | ".join(tail))
        line = json.loads(ready[0])
        yield Serving(line["target"], line["pid"])
    finally:
        _end(process, grace_s)
        for thread in threads:
            thread.join(_KILL_S)


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM; after `grace_s` seconds SIGKILL, of which its workers die, too."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_KILL_S)


def _read_ready(process: subprocess.Popen[bytes], ready: list[bytes], heard: threading.Event) -> None:
    if process.stdout is None:
        raise ColibriError("the pipe was asked for")
    with process.stdout:
        line = process.stdout.readline()
        if line:
            ready.append(line)
        heard.set()
        while process.stdout.read(1 << 16):  # nothing else is said there; a full pipe would hold it up
            pass


def _read_log(process: subprocess.Popen[bytes], tail: deque[str], log: Callable[[str], None]) -> None:
    if process.stderr is None:
        raise ColibriError("the pipe was asked for")
    with process.stderr:
        for line in process.stderr:
            text = line.decode(errors="replace").rstrip()
            tail.append(text)
            log(text)
