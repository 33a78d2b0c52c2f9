"""Move an expert of a running deployment to another worker, or add or drop a holder; no request notices."""

from __future__ import annotations

import argparse

from colibri.cli.operator_options import add_change, carry_out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("expert", type=_expert, metavar="L:E", help="layer and number of the expert")
    parser.add_argument(
        "--to", default="", metavar="WORKER", help="becomes its first holder (default: nobody new)"
    )
    parser.add_argument(
        "--from",
        dest="source",
        default="",
        metavar="WORKER",
        help="holds it no longer (default: nobody is dropped)",
    )
    add_change(parser)


def run(args: argparse.Namespace) -> int:
    layer, expert = args.expert
    return carry_out(
        args, lambda operator, timeout_s: operator.move(layer, expert, args.to, args.source, timeout_s)
    )


def _expert(text: str) -> tuple[int, int]:
    layer, colon, expert = text.partition(":")
    if not (colon and layer.isdecimal() and expert.isdecimal() and len(text) <= 16):
        raise argparse.ArgumentTypeError(f"expected LAYER:EXPERT, as 3:17, got {text!r}")
    return int(layer), int(expert)
