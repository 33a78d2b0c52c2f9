"""What the verbs for operators share: where the deployment is, how a change is followed and told."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from colibri.cli.parser import number
from colibri.cli.security_options import add_channel_security, channel_security

if TYPE_CHECKING:
    from colibri.client.operator import Operator
    from colibri.v1 import operator_pb2 as pb

#: Longest bound of a change, seconds: as the server's.
_LONGEST_S = 86400.0


def add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target",
        default="127.0.0.1:50051",
        metavar="ADDR",
        help="the running `colibri serve`: host:port or unix:/path",
    )
    add_channel_security(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def add_change(parser: argparse.ArgumentParser) -> None:
    """For verbs that change the placement."""
    add_target(parser)
    parser.add_argument(
        "--timeout",
        type=number(0.1, _LONGEST_S),
        default=3600.0,
        metavar="S",
        help="seconds; a change that is not done by then is taken back",
    )


def carry_out(args: argparse.Namespace, change: Callable[[Operator, float], pb.ChangeProgress]) -> int:
    """Follows a change on stderr and tells its end on stdout. Raises ColibriError for one that was taken back."""
    from colibri.cli.terminal import say, shown
    from colibri.client.operator import Operator

    told: list[str] = []

    def follow(step: pb.ChangeProgress) -> None:
        line = f"{step.phase}: {step.text}"
        if not step.done and line not in told[-1:] and not args.json:
            told.append(line)
            say(line)

    with Operator(args.target, follow, channel_security(args)) as operator:
        last = change(operator, args.timeout)
    if args.json:
        print(json.dumps({"done": last.done, "text": last.text, "epoch": last.epoch}))
    else:
        print(shown(f"{last.text}, epoch {last.epoch}"))
    return 0
