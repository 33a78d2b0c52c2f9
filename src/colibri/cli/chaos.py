"""Break a deployment on purpose while it answers, by a seeded plan, and judge every answer.

The plan says what happens (docs/chaos.md): kills, hangs, bad replies, moves, bad networks. Without --target
the tool starts a server as the plan says, and ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from colibri.cli.security_options import (
    add_channel_security,
    add_worker_secret,
    channel_security,
    check_called,
    worker_secret,
)
from colibri.log_writer import LogWriter
from colibri.whole_write import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from colibri.bench.chaos.plan import Plan
    from colibri.bench.chaos.runner import ChaosResult
    from colibri.bench.chaos.verdict import Verdict


#: How long the end of a run waits for whoever reads --server-log.
_LOG_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="YAML file of the plan")
    parser.add_argument(
        "--target",
        default=argparse.SUPPRESS,
        metavar="ADDR",
        help="a server that runs on this machine, started with --allow-faults (default: one of our own)",
    )
    add_channel_security(parser)
    add_worker_secret(parser, "of the workers of --target, for faults in them")
    parser.add_argument(
        "--model",
        default=argparse.SUPPRESS,
        metavar="FOLDER",
        help='checkpoint, or "demo", in place of the plan\'s; with --target, of the answers to compare with',
    )
    parser.add_argument(
        "--seed", type=int, default=argparse.SUPPRESS, help="in place of the plan's (default: as planned)"
    )
    parser.add_argument("--svg", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="draw the run")
    parser.add_argument(
        "--server-log",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="what our own server says",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--check", action="store_true", help="read the plan, print its events, do nothing")


def run(args: argparse.Namespace) -> int:
    from colibri.bench.chaos.picture import draw
    from colibri.bench.chaos.plan_file import read_plan
    from colibri.bench.chaos.run import run_plan
    from colibri.cli.terminal import say

    if not hasattr(args, "target"):
        check_called(args)
    plan = _with_overrides(read_plan(args.plan), args)
    if args.check:
        return _print_schedule(plan)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(_server_log(args.server_log)) if hasattr(args, "server_log") else None
        result, verdict = run_plan(
            plan,
            getattr(args, "target", None),
            security=channel_security(args),
            secret=worker_secret(args),
            tell=say,
            server_log=lambda line: None if log is None else log.put(f"{line}\n".encode()),
        )
    _print(result, verdict, args.json)
    if hasattr(args, "svg"):  # last: when it cannot be written, the report is there
        write_whole(args.svg, draw(result, verdict, f"{args.plan.stem}, seed {plan.seed}").encode("utf-8"))
    return 0 if verdict.passed else 1


@contextlib.contextmanager
def _server_log(path: Path) -> Iterator[LogWriter]:
    """The server's lines must be taken from it whether or not this file can be written: else it would wait."""
    from colibri.cli.terminal import say

    # Opened to read as well, so that a named pipe needs nobody at its other end.
    with open(path, "w+b" if path.is_fifo() else "wb", buffering=0) as file:
        writer = LogWriter(file.fileno())
        try:
            yield writer
        finally:
            whole = writer.close(_LOG_S)
            if writer.dropped or not whole:
                say(f"--server-log: {path} lacks {writer.dropped} lines{'' if whole else ' and its end'}")


def _with_overrides(plan: Plan, args: argparse.Namespace) -> Plan:
    from dataclasses import replace

    from colibri.bench.chaos.plan import ServeSpec

    if hasattr(args, "seed"):
        plan = replace(plan, seed=args.seed)
    if hasattr(args, "model"):
        plan = replace(plan, serve=replace(plan.serve or ServeSpec(args.model), model=args.model))
    return plan


def _print_schedule(plan: Plan) -> int:
    from colibri.bench.chaos.schedule import schedule

    for event in schedule(plan):
        about = event.spec.worker if event.spec.workers == 0 else f"{event.spec.workers} workers"
        print(f"{event.at_s:8.3f} s  {event.phase:<16} {event.spec.action.value:<12} {about}")
    return 0


def _print(result: ChaosResult, verdict: Verdict, as_json: bool) -> None:
    from colibri.bench.chaos.report import document, lines

    if as_json:
        print(json.dumps(document(result, verdict)))
        return
    sys.stdout.write("\n".join(lines(result, verdict)) + "\n")
