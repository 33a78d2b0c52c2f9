"""Serve on the Ray cluster that this machine is the head of: detached, restarted by Ray, logged to a file."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colibri.cli.parser import number
from colibri.cli.settings import CONFIG, CONFIG_VARIABLE

if TYPE_CHECKING:
    from colibri.cluster.ray.head import ServerState

#: First line of --follow: a shell may have said something before.
FOLLOWING = "what the server says:"
ABOUT = """
Run by the start commands of cluster.yaml on the head; `colibri up` and `colibri down` run it over there. What is
served is what the options of `serve` in --config (default: ~/colibri.yaml) say, with --launcher ray. Without --follow
it returns at once.
"""

_FILE = "~/colibri.yaml"
_ASK_S = 10.0
_POLL_S = 0.25
#: Failed ones, after which --follow does not wait for another.
_STARTS = 3
#: Ray restarts the server's actor when the server has ended.
_RESTART_S = 60.0


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
    from colibri.cluster.ray.session import connect

    leave = connect("auto")
    try:
        if args.stop:
            return _stop(args.grace)
        return _follow(args.wait) if args.follow else _start(args)
    finally:
        leave()


def _start(args: argparse.Namespace) -> int:
    from colibri.cli.terminal import say
    from colibri.cluster.ray.head import start_server
    from colibri.errors import ColibriError, ConfigError
    from colibri.models.home import colibri_home

    named = getattr(args, CONFIG, os.environ.get(CONFIG_VARIABLE, _FILE))
    file = Path(named).expanduser().absolute()
    if not file.is_file():
        raise ConfigError("--config", "a file with options of `serve`", file)
    log = getattr(args, "log", colibri_home(os.environ) / "logs" / "serve.log").expanduser().absolute()
    command = [sys.executable, "-P", "-m", "colibri.cli.main", "serve"]
    try:
        start_server([*command, f"--config={file}", "--launcher=ray", "--json"], log)
    except ValueError as error:
        raise ColibriError("a server is deployed here already: `colibri deploy --stop` ends it") from error
    say(f"the server starts; it says in {log} how far it is (`colibri deploy --follow`)")
    return 0


def _follow(wait_s: float) -> int:
    """Its log from the last start on stderr, its ready line on stdout. Raises ColibriError when that is in vain."""
    from colibri.cli.terminal import say
    from colibri.cluster.ray.head import ENDED
    from colibri.errors import ColibriError, DeadlineExpired

    until = time.monotonic() + wait_s
    offset, told, silent_since, ends = 0, False, time.monotonic(), 0
    say(FOLLOWING)
    while True:
        try:
            actor = _actor()
            state: ServerState = _ask(actor.state.remote())
            # After the state, so that nothing that was said before it is missed.
            offset, text = _ask(actor.lines.remote(offset))
            silent_since = time.monotonic()
        except ColibriError:
            if time.monotonic() - silent_since > _RESTART_S:
                raise
            time.sleep(_POLL_S)
            continue
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
                f"{ends} starts of the server have failed, and Ray starts it again (log: {state.log})"
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


def _stop(grace_s: float) -> int:
    from colibri.cli.terminal import say
    from colibri.cluster.ray.session import api
    from colibri.errors import ColibriError

    try:
        actor = _actor()
    except ColibriError:
        say("no server is deployed here")
        return 0
    in_time = _ask(actor.stop.remote(grace_s), grace_s + 2 * _ASK_S)
    api().kill(actor, no_restart=True)
    say("the server has ended" if in_time else f"the server was ended after {grace_s:g} s")
    return 0


def _actor() -> Any:
    from colibri.cluster.ray.head import find_server
    from colibri.errors import ColibriError

    try:
        return find_server()
    except ValueError as error:
        raise ColibriError("no server is deployed on this Ray cluster", peer="serve") from error


def _ask(answer: Any, timeout_s: float = _ASK_S) -> Any:
    """Raises ColibriError when the server's actor does not answer."""
    from colibri.cluster.ray.session import api
    from colibri.errors import ColibriError

    ray = api()
    try:
        return ray.get(answer, timeout=timeout_s)
    except ray.exceptions.RayError as error:
        raise ColibriError(
            f"the server's actor does not answer: {type(error).__name__}", peer="serve"
        ) from error
