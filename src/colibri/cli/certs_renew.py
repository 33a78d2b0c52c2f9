"""Issue anew what ends soon; servers take it up without a restart."""

from __future__ import annotations

import argparse
from pathlib import Path

from colibri.cli.parser import integer, number

ABOUT = """
Roles and names stay, keys are new. Copied over the old files on its host, a new certificate serves the next connection;
connections that are open go on.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="that of `colibri certs init`")
    parser.add_argument(
        "--within", type=number(0, 36500), default=30.0, metavar="DAYS", help="what ends so soon is renewed"
    )
    parser.add_argument(
        "--days", type=integer(1, 3650), default=90, metavar="N", help="days until the new ones end"
    )


def run(args: argparse.Namespace) -> int:
    from colibri.cli.certs import authority

    renewed = authority().Authority(args.folder).renew(args.within, args.days)
    for made in renewed:
        print(f"{args.folder / made.name}.pem and .key: valid until {made.not_after:%Y-%m-%d}")
    if not renewed:
        print(f"nothing ends within {args.within:g} days")
    return 0
