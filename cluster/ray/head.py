"""The server on a cluster's head: detached from whoever deployed it, restarted by Ray, its log in one file.

A named actor owns one `colibri serve`. When that ends by itself, so does the actor's process, and Ray restarts both;
a command line that is wrong stays wrong, so exit code 2 is final. When the actor ends, the kernel ends the server
(PR_SET_PDEATHSIG), and with it Ray ends the workers' actors.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from colibri.cluster.child import describe_end
from colibri.cluster.ray.session import api

NAME = "colibri-serve"
#: In the log's line about the end of a life.
ENDED = "--- the server "
#: Between the end of a server and its next life: Ray may need as long to see what the old one held freed.
_PAUSE_S = 2.0
#: Of the log, in one answer.
_MOST_BYTES = 1 << 16
_USAGE = 2
_KILL_S = 10.0
#: Methods beside each other: state, lines, stop.
_CONCURRENCY = 4


@dataclass(frozen=True, slots=True)
class ServerState:
    """phase: 'starting', 'serving', 'failed' (no restart can help) or 'stopped'. target, pid: of this life, once it
    serves; why: how it failed. log: the file on the head."""

    phase: str
    target: str = ""
    pid: int = 0
    why: str = ""
    log: str = ""


class ServerActor:
    """command: `colibri serve` and its options, with --json; log: gets its stderr, one life after another."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = list(command)
        self._log = log
        self._lock = threading.Lock()
        self._state = ServerState("starting", log=str(log))
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._ended = threading.Event()
        log.parent.mkdir(parents=True, exist_ok=True)
        # The server dies with the thread that starts it; Ray's threads come and go.
        threading.Thread(target=self._keep, name="colibri-serve", daemon=True).start()

    def state(self) -> ServerState:
        with self._lock:
            return self._state

    def lines(self, offset: int) -> tuple[int, str]:
        """(next offset, text) of the log from a byte offset; negative: so many bytes before its end."""
        try:
            with self._log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(0, size + offset) if offset < 0 else min(offset, size)
                file.seek(start)
                text = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return 0, ""
        whole = text[: text.rfind(b"\n") + 1]
        return start + len(whole), whole.decode(errors="replace")

    def stop(self, grace_s: float) -> bool:
        """SIGTERM; after `grace_s` seconds SIGKILL. Whether it ended in time."""
        with self._lock:
            self._stopping = True
            process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
        if self._ended.wait(grace_s):
            return True
        if process is not None:
            process.kill()
        self._ended.wait(_KILL_S)
        return False

    def _keep(self) -> None:
        with self._log.open("ab", buffering=0) as log:
            _add(log, f"--- {time.strftime('%F %T')} {' '.join(self._command)}\n")
            with self._lock:
                if self._stopping:
                    self._ended.set()
                    return
                self._process = subprocess.Popen(
                    [*self._command, f"--parent-pid={os.getpid()}"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    process_group=0,
                )
            code = self._watch(self._process)
            _add(log, f"{ENDED}{describe_end(code)} at {time.strftime('%F %T')}\n")
        if self._stopping:
            self._note(ServerState("stopped", log=str(self._log)))
            self._ended.set()
            return
        if code == _USAGE:
            self._note(ServerState("failed", why=self._last_line(), log=str(self._log)))
            self._ended.set()
            return
        time.sleep(_PAUSE_S)
        os._exit(1)  # Ray restarts this actor

    def _watch(self, process: subprocess.Popen[bytes]) -> int:
        if process.stdout is None:
            raise RuntimeError("the pipe was asked for")
        with process.stdout as out:
            for line in out:
                try:
                    ready = json.loads(line)
                    self._note(
                        ServerState("serving", str(ready["target"]), int(ready["pid"]), log=str(self._log))
                    )
                except (ValueError, KeyError, TypeError):
                    continue
        return process.wait()

    def _note(self, state: ServerState) -> None:
        with self._lock:
            self._state = state

    def _last_line(self) -> str:
        _, text = self.lines(-4096)
        said = [line for line in text.splitlines() if line and not line.startswith("---")]
        return said[-1] if said else ""


def _add(log: FileIO, text: str) -> None:
    """A full disk must not end the thread that minds the server."""
    with contextlib.suppress(OSError):
        log.write(text.encode())


def start_server(command: Sequence[str], log: Path) -> None:
    """Detached, on this very host. The connection to Ray must be made. Raises ValueError where one runs."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray = api()
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(ServerActor).options(
        name=NAME,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=_CONCURRENCY,
        scheduling_strategy=here,
    )
    actor.remote(list(command), log)


def find_server() -> Any:
    """Its actor. Raises ValueError where none is."""
    return api().get_actor(NAME)
