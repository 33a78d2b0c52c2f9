"""Run commands for a cluster from an operator's machine: Ray's own, and others on its hosts. Each is bounded; none
waits for input.
"""

from __future__ import annotations

import os
import selectors
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from colibri.cluster.ray.cluster_file import ClusterFile
from colibri.errors import ColibriError, DeadlineExpired

_TAIL_LINES = 15
#: With it, all of Ray's processes show each other the token; usage statistics are off.
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Autoscaler v2 races with provider `local` (it books the head as a worker, and may never start the last one).
    "RAY_UP_enable_autoscaler_v2": "0",
}


def environment(cluster: ClusterFile, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for Ray's command line."""
    token = {} if cluster.token is None else {"RAY_AUTH_TOKEN_PATH": str(cluster.token)}
    return {**environ, **ENVIRONMENT, **token}


def ray_command(verb: str, *arguments: str) -> list[str]:
    """Returns a command of the Ray that is installed beside Colibri."""
    program = Path(sys.executable).with_name("ray")
    return [str(program) if program.exists() else "ray", verb, *arguments]


def host_command(cluster: ClusterFile, host: str, command: str) -> list[str]:
    """Returns the command that runs `command` in a login shell of a host."""
    options = (
        "BatchMode=yes",
        "StrictHostKeyChecking=no",
        "UserKnownHostsFile=/dev/null",
        "LogLevel=ERROR",
        "ConnectTimeout=10",
    )
    identity = [] if cluster.key is None else ["-i", str(cluster.key)]
    flags = [word for option in options for word in ("-o", option)]
    return ["ssh", *identity, *flags, f"{cluster.user}@{host}", f"bash -lc {shlex.quote(command)}"]


def follow(
    argv: Sequence[str],
    timeout_s: float,
    what: str,
    *,
    env: Mapping[str, str] | None = None,
    heard: Callable[[str], None] = lambda line: None,
) -> str:
    """Runs a command. Returns what it wrote to stdout.

    heard: gets its lines, of both streams, as they come.

    Raises ColibriError with the last lines if it fails, DeadlineExpired if it does not end in time.
    """
    until = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            process_group=0,
        )
    except OSError as error:
        raise ColibriError(f"{what}: {argv[0]}: {error.strerror}") from error
    out: list[str] = []
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    try:
        ended = _read(process, until, out, tail, heard)
        code = process.wait(max(0.0, until - time.monotonic())) if ended else None
    except subprocess.TimeoutExpired:
        code = None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
    if code is None:
        raise DeadlineExpired(f"{what} did not end within {timeout_s:g} s: {' | '.join(tail)}", peer=what)
    if code:
        raise ColibriError(f"{what} failed (exit code {code}): {' | '.join(tail)}", peer=what)
    return "".join(out)


def _read(
    process: subprocess.Popen[bytes],
    until: float,
    out: list[str],
    tail: deque[str],
    heard: Callable[[str], None],
) -> bool:
    """Reads both streams. Returns whether they ended in time."""
    if process.stdout is None or process.stderr is None:
        raise RuntimeError("the pipes were asked for")
    with selectors.DefaultSelector() as selector, process.stdout as stdout, process.stderr as stderr:
        rests = {stdout.fileno(): b"", stderr.fileno(): b""}
        for fd in rests:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            left = until - time.monotonic()
            if left <= 0:
                return False
            for key, _ in selector.select(min(left, 1.0)):
                piece = os.read(key.fd, 1 << 16)
                if not piece:
                    selector.unregister(key.fd)
                if key.fd == stdout.fileno():
                    out.append(piece.decode(errors="replace"))
                *lines, rests[key.fd] = (rests[key.fd] + piece).split(b"\n")
                if not piece:
                    lines, rests[key.fd] = [*lines, rests[key.fd]], b""
                for line in lines:
                    if text := line.decode(errors="replace").strip():
                        tail.append(text)
                        heard(text)
    return True
