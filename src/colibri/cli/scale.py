"""Set the number of workers of a running deployment; no request notices."""

from __future__ import annotations

import argparse

from colibri.cli.operator_options import add_change, carry_out
from colibri.cli.parser import integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workers", type=integer(1, 256), metavar="N", help="workers to have; drained ones do not count"
    )
    add_change(parser)


def run(args: argparse.Namespace) -> int:
    return carry_out(args, lambda operator, timeout_s: operator.scale(args.workers, timeout_s))
