"""Make a private CA in a new folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from colibri.cli.parser import integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="where it is kept; made, for its owner alone"
    )
    parser.add_argument("--name", default="Colibri private CA", help="what the CA calls itself")
    parser.add_argument(
        "--days", type=integer(1, 36500), default=3650, metavar="N", help="days until it ends"
    )


def run(args: argparse.Namespace) -> int:
    from colibri.cli.certs import authority

    made = authority().Authority.create(args.folder, args.name, args.days)
    own = made.issued[0]
    print(
        f"{args.folder / 'ca.pem'}: valid until {own.not_after:%Y-%m-%d}; keep {args.folder / 'ca.key'} here"
    )
    return 0
