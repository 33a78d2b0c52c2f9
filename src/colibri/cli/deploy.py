"""Serve on the Ray cluster that this machine is the head of: detached, kept running, logged to a file."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from colibri.cli.parser import number
from colibri.cli.settings import CONFIG, CONFIG_VARIABLE

if TYPE_CHECKING:
    from colibri.cluster.ray.server_state import ServerFiles

#: First line of --follow: a shell may have said something before.
FOLLOWING = "what the server says:"
ABOUT = """
Run by the start commands of cluster.yaml on the head; `colibri up` and `colibri down` run it over there. What is
served is what the options of `serve` in --config (default: ~/colibri.yaml) say, with --launcher ray. Without --follow
it returns at once. A keeper, no process of Ray, starts the server anew when it ends; it takes its workers over then.
"""

_FILE = "~/colibri.yaml"
_ASK_S = 10.0
_POLL_S = 0.25
#: Failed ones, after which --follow does not wait for another.
_STARTS = 3
#: From a SIGKILL after the grace to the keeper's end.
_STOP_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="what the server says (default: logs/serve.log in the Colibri home)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--follow", action="store_true", help="start nothing; tell what the server says until it serves"
    )
    what.add_argument("--stop", action="store_true", help="end the server; requests that run may end")
    parser.add_argument(
        "--wait",
        type=number(0, 86400),
        default=600.0,
        metavar="S",
        help="with --follow: at most so many seconds",
    )
    parser.add_argument(
        "--grace",
        type=number(0, 3600),
        default=30.0,
        metavar="S",
        help="with --stop: seconds for requests that run",
    )


def run(args: argparse.Namespace) -> int:
    from colibri.cluster.ray.server_state import ServerFiles
    from colibri.models.home import colibri_home

    folder = colibri_home(os.environ) / "deploy"
    files = ServerFiles(folder)
    if args.stop:
        return _stop(files, args.grace)
    return _follow(files, args.wait) if args.follow else _start(args, files, folder)


def _start(args: argparse.Namespace, files: ServerFiles, folder: Path) -> int:
    from colibri.cli.terminal import say
    from colibri.cluster.ray.keeper import start_keeper
    from colibri.errors import ColibriError, ConfigError, DeadlineExpired
    from colibri.models.home import colibri_home

    named = getattr(args, CONFIG, os.environ.get(CONFIG_VARIABLE, _FILE))
    file = Path(named).expanduser().absolute()
    if not file.is_file():
        raise ConfigError("--config", "a file with options of `serve`", file)
    if files.is_kept():
        raise ColibriError("a server is deployed here already: `colibri deploy --stop` ends it")
    log = getattr(args, "log", colibri_home(os.environ) / "logs" / "serve.log").expanduser().absolute()
    command = [sys.executable, "-P", "-m", "colibri.cli.main", "serve"]
    keeper = start_keeper(
        "colibri.cluster.ray.keep_server",
        [str(folder), str(log), *command, f"--config={file}", "--launcher=ray", "--json"],
        log,
    )
    until = time.monotonic() + _ASK_S
    while (state := files.read()) is None or state.keeper != keeper.pid:
        if keeper.poll() is not None:
            raise ColibriError(
                f"the server's keeper ended at once with code {keeper.returncode} (log: {log})"
            )
        if time.monotonic() > until:
            keeper.kill()
            raise DeadlineExpired(f"the server's keeper did not begin within {_ASK_S:g} s (log: {log})")
        time.sleep(_POLL_S)
    say(f"the server starts; it says in {log} how far it is (`colibri deploy --follow`)")
    return 0


def _follow(files: ServerFiles, wait_s: float) -> int:
    """Its log from the last start on stderr, its ready line on stdout. Raises ColibriError when that is in vain."""
    from colibri.cli.terminal import say
    from colibri.cluster.ray.server_state import ENDED, log_lines
    from colibri.errors import ColibriError, DeadlineExpired

    until = time.monotonic() + wait_s
    offset, told, ends = 0, False, 0
    say(FOLLOWING)
    while True:
        kept, state = files.is_kept(), files.read()
        if state is None or (not kept and state.phase in ("starting", "serving")):
            raise ColibriError("no server is deployed on this machine", peer="serve")
        # After the state, so that nothing that was said before it is missed.
        offset, text = log_lines(Path(state.log), offset)
        lines = text.splitlines()
        if not told:  # of several lives the last
            starts = [
                index for index, line in enumerate(lines) if line.startswith("--- ") and " serve " in line
            ]
            lines, told = lines[starts[-1] :] if starts else lines, True
        for line in lines:
            say(line)
            ends += ENDED in line
        if ends >= _STARTS:
            raise ColibriError(
                f"{ends} starts of the server have failed, and its keeper starts it again (log: {state.log})"
            )
        if state.phase == "serving":
            print(json.dumps({"target": state.target, "pid": state.pid, "log": state.log}), flush=True)
            return 0
        if state.phase != "starting":
            raise ColibriError(
                f"the server has {state.phase}: {state.why or 'it was told to'} (log: {state.log})"
            )
        if time.monotonic() > until:
            raise DeadlineExpired(
                f"the server did not serve within {wait_s:g} s (log: {state.log})", peer="serve"
            )
        time.sleep(_POLL_S)


def _stop(files: ServerFiles, grace_s: float) -> int:
    from colibri.cli.terminal import say
    from colibri.errors import DeadlineExpired

    state = files.read()
    if state is None or not files.is_kept():
        say("no server is deployed here")
        return 0
    files.ask_grace(grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.kill(state.keeper, signal.SIGTERM)
    begun = time.monotonic()
    while files.is_kept():
        if time.monotonic() - begun > grace_s + _STOP_S:
            raise DeadlineExpired(f"the server did not end within {grace_s + _STOP_S:g} s", peer="serve")
        time.sleep(_POLL_S)
    say("the server has ended")
    return 0
