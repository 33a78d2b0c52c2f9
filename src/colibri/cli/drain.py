"""Take a worker out of a running deployment, or bring it back; no request notices."""

from __future__ import annotations

import argparse

from colibri.cli.operator_options import add_change, carry_out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("worker", metavar="WORKER", help="its name, as `colibri status` shows it")
    parser.add_argument("--undo", action="store_true", help="start it again and give it experts")
    add_change(parser)


def run(args: argparse.Namespace) -> int:
    return carry_out(args, lambda operator, timeout_s: operator.drain(args.worker, args.undo, timeout_s))
