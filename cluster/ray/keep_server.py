"""`python -m colibri.cluster.ray.keep_server FOLDER LOG COMMAND...`: keeps a cluster's server running, on its head.

It is no process of Ray, so neither a dead raylet nor a dead GCS ends the server. When the server ends by itself it is
started anew, and takes its workers over; a command line that is wrong stays wrong, so exit code 2 is final. SIGTERM,
as from `colibri deploy --stop` or `ray stop`, ends the server and then this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from io import FileIO
from pathlib import Path

from colibri.cluster.ray.keeper import settle_keeper
from colibri.cluster.ray.server_state import ENDED, ServerFiles, ServerState, log_lines
from colibri.cluster.workers.worker_process import describe_end

#: Between the end of a server and its next life; doubled while starts fail.
_PAUSE_S, _MAX_PAUSE_S = 0.5, 10.0
#: For what runs when `ray stop` ends this process: it kills what stays longer than 16 s.
_GRACE_S = 10.0
_USAGE = 2
_KILL_S = 10.0
_LOOK_S = 0.1


class ServerKeeper:
    """command: `colibri serve` and its options, with --json. log: gets its stderr, one run after another."""

    def __init__(self, files: ServerFiles, log: Path, command: Sequence[str], stop: threading.Event) -> None:
        self._files = files
        self._log = log
        self._command = list(command)
        self._stop = stop
        self._state = ServerState("starting", keeper=os.getpid(), log=str(log))

    def run(self) -> int:
        """Runs on the main thread, with which the server ends. Returns when told to stop, or if no restart can help."""
        pause_s = _PAUSE_S
        while not self._stop.is_set():
            self._note(phase="starting", target="", pid=0)
            code = self._live()
            if self._stop.is_set():
                break
            if code == _USAGE:
                self._note(phase="failed", why=self._last_line(), target="", pid=0)
                return 1
            pause_s = _PAUSE_S if self._state.phase == "serving" else min(2 * pause_s, _MAX_PAUSE_S)
            self._stop.wait(pause_s)
        self._note(phase="stopped", target="", pid=0)
        return 0

    def _live(self) -> int:
        with self._log.open("ab", buffering=0) as log:
            _add(log, f"--- {time.strftime('%F %T')} {' '.join(self._command)}\n")
            process = subprocess.Popen(
                [*self._command, f"--parent-pid={os.getpid()}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,
            )
            reader = threading.Thread(target=self._read, args=(process,), name="colibri-read", daemon=True)
            reader.start()
            while process.poll() is None and not self._stop.wait(_LOOK_S):
                pass
            if process.poll() is None:
                self._end(process)
            code = process.wait()
            reader.join(_KILL_S)
            _add(log, f"{ENDED}{describe_end(code)} at {time.strftime('%F %T')}\n")
        return code

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(self._files.grace_s(_GRACE_S) + _KILL_S)
        except subprocess.TimeoutExpired:
            process.kill()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Reads the server's ready line; ignores what else it prints."""
        if process.stdout is None:
            raise RuntimeError("the pipe was asked for")
        with process.stdout as out:
            for line in out:
                try:
                    ready = json.loads(line)
                    self._note(phase="serving", target=str(ready["target"]), pid=int(ready["pid"]))
                except (ValueError, KeyError, TypeError):
                    continue

    def _note(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):  # a full disk must not end what keeps the server
            self._files.write(self._state)

    def _last_line(self) -> str:
        _, text = log_lines(self._log, -4096)
        said = [line for line in text.splitlines() if line and not line.startswith("---")]
        return said[-1] if said else ""


def _add(log: FileIO, text: str) -> None:
    """Writes to the log. A full disk must not end the keeper."""
    with contextlib.suppress(OSError):
        log.write(text.encode())


def main(arguments: Sequence[str]) -> int:
    stop = settle_keeper()
    folder, log, *command = arguments
    files = ServerFiles(Path(folder))
    if not files.hold():
        print("a server is deployed here already", file=sys.stderr)
        return 1
    return ServerKeeper(files, Path(log), command, stop).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
