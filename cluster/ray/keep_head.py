"""`python -m colibri.cluster.ray.keep_head [--log FILE] -- ray start --head ...`: keeps Ray running on the head.

`ray start` leaves its processes to themselves: a GCS, a raylet or an autoscaler that dies is never started again. This
starts them by the command that follows `--`, returns when that has succeeded, and leaves a keeper behind, which looks
after them: when one of them is gone, all of Ray on this host is ended and started anew. Workers and the server are no
processes of Ray, and go on. SIGTERM, as from `ray stop`, ends the keeper first; what Ray runs is then Ray's to end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from colibri.cluster.ray.keeper import group_of, settle_keeper, start_keeper

#: Without one of these, by a part of the command line, Ray does not do what it is there for. Agents and log monitors
#: end with their raylet.
PARTS = {
    "GCS": "gcs/gcs_server",
    "raylet": "raylet/raylet",
    "autoscaler": "autoscaler/_private/monitor.py",
    "dashboard": "dashboard/dashboard.py",
}
#: Every head has these: they may have died before anybody looked.
_ALWAYS = ("GCS", "raylet")
_LOOK_S = 0.5
#: `ray stop` ends the keeper at once with the raylet: an end that is meant is known by then.
_MEANT_S = 1.0
_START_S = 180.0
#: Of the first start, before it is told as failed: Ray gives its own processes a minute, which a busy machine may need.
_TRIES = 3
_PAUSE_S, _MAX_PAUSE_S = 1.0, 20.0
_END_S = 10.0
_KEEPER = "--keeper"


def missing(before: Mapping[str, int], now: Mapping[int, str]) -> list[str]:
    """Returns the names of parts that ran, or must run, and do not.

    before: name -> process id.
    now: process id -> command line.
    """
    wanted = {**dict.fromkeys(_ALWAYS, 0), **before}
    return [name for name, pid in wanted.items() if PARTS[name] not in now.get(pid, "")]


def parts_of(processes: Mapping[int, str]) -> dict[str, int]:
    """Returns the process id of each part that is there."""
    return {
        name: pid for name, part in PARTS.items() for pid, command in processes.items() if part in command
    }


class HeadKeeper:
    def __init__(self, command: Sequence[str], stop: threading.Event, proc: Path = Path("/proc")) -> None:
        self._command = list(command)
        self._stop = stop
        self._proc = proc

    def run(self, started: int) -> int:
        """Keeps Ray running until told to stop. started: the process group of the Ray that runs."""
        group = started
        while not self._stop.is_set():
            before = parts_of(group_of(self._proc, group))
            gone: list[str] = []
            while not gone and not self._stop.wait(_LOOK_S):
                gone = missing(before, group_of(self._proc, group))
            if self._stop.wait(_MEANT_S):
                break
            _say(f"gone: {', '.join(gone)}; Ray is started anew on this host")
            end_group(group, self._proc)
            group = self._start_again()
        return 0

    def _start_again(self) -> int:
        pause_s = _PAUSE_S
        while not self._stop.wait(pause_s):
            group, code = start(self._command)
            if code == 0:
                _say("Ray runs again")
                return group
            end_group(group, self._proc)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            _say(f"`ray start` failed (exit code {code}); trying again in {pause_s:g} s")
        return 0


def end_group(group: int, proc: Path = Path("/proc")) -> None:
    """Ends the whole group: what is left of an old Ray holds its ports. Minders and their workers are in groups of
    their own.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + _END_S
        for pid in group_of(proc, group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while group_of(proc, group) and time.monotonic() < until:
            time.sleep(0.05)


def start(command: Sequence[str]) -> tuple[int, int]:
    """Runs `ray start`. Returns (group, exit code); a code of -1: not done in time."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.pid, process.wait(_START_S)
    except subprocess.TimeoutExpired:
        return process.pid, -1


def _say(line: str) -> None:
    print(f"{time.strftime('%F %T')} {line}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == [_KEEPER]:
        stop = settle_keeper()
        return HeadKeeper(arguments[2:], stop).run(int(arguments[1]))
    split = list(arguments).index("--") if "--" in arguments else -1
    if split < 0 or not arguments[split + 1 :]:
        print("usage: keep_head [--log FILE] -- ray start --head ...", file=sys.stderr)
        return 2
    options, command = arguments[:split], arguments[split + 1 :]
    log = Path(options[1] if len(options) == 2 and options[0] == "--log" else "~/.cache/colibri/logs/ray.log")
    for _ in range(_TRIES):
        group, code = start(command)
        if code == 0:
            break
        end_group(group)
    else:
        return max(1, code)
    start_keeper("colibri.cluster.ray.keep_head", [_KEEPER, str(group), *command], log.expanduser())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
