"""Take a worker out of a running deployment, or bring it back; no request notices."""

from __future__ import annotations

import argparse

from colibri.cli.operator_options import add_change, carry_out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "worker", nargs="?", default="", metavar="WORKER", help="its name, as `colibri status` shows it"
    )
    parser.add_argument(
        "--host",
        default="",
        help="in place of WORKER: all workers of this host, as `colibri status --json` names it",
    )
    parser.add_argument("--undo", action="store_true", help="start it again and give it experts")
    add_change(parser)


def run(args: argparse.Namespace) -> int:
    from colibri.errors import ConfigError

    if bool(args.worker) == bool(args.host):
        got = f"{args.worker} and --host {args.host}" if args.worker else "neither"
        raise ConfigError("WORKER", "a worker's name, or --host HOST in its place", got)
    return carry_out(
        args, lambda operator, timeout_s: operator.drain(args.worker, args.undo, timeout_s, args.host)
    )
