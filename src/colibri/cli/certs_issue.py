"""Issue a certificate for a role and its hosts."""

from __future__ import annotations

import argparse
from pathlib import Path

from colibri.cli.parser import integer

#: Values of colibri.security.roles.Role.
ROLES = ("coordinator", "router", "worker", "client", "operator")

ABOUT = """
A coordinator, a router and a worker are reached at the hosts given, and at localhost. A worker's certificate is for
worker.colibri.internal, too: with --worker-tls-name one certificate serves hosts whose addresses are not known before.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="that of `colibri certs init`")
    parser.add_argument("--role", choices=ROLES, required=True, help="what its holder is, and may do")
    parser.add_argument(
        "--host",
        action="append",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="host name or address at which it is reached, once for each",
    )
    parser.add_argument(
        "--name",
        default=argparse.SUPPRESS,
        help="of the files (default: the role, and the first host where there is one)",
    )
    parser.add_argument("--days", type=integer(1, 3650), default=90, metavar="N", help="days until it ends")


def run(args: argparse.Namespace) -> int:
    from colibri.cli.certs import authority
    from colibri.security.roles import Role

    hosts = getattr(args, "host", [])
    name = getattr(args, "name", None) or "-".join([args.role, *hosts[:1]]).replace(":", "-").replace(
        "*", "any"
    )
    made = authority().Authority(args.folder).issue(name, Role(args.role), hosts, args.days)
    where = f" at {', '.join(made.names)}" if made.names else ""
    print(
        f"{args.folder / made.name}.pem and .key: {args.role}{where}, valid until {made.not_after:%Y-%m-%d}"
    )
    return 0
