"""Draw a token and add it to the file of a server."""

from __future__ import annotations

import argparse
import secrets
import time
from pathlib import Path

from colibri.cli.parser import number

#: Values of colibri.security.roles.Scope.
SCOPES = ("client", "operator")
_PREFIX = "clb_"
_RANDOM_BYTES = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="whose it is, as refusals and logs call it")
    parser.add_argument(
        "--tokens",
        type=Path,
        required=True,
        metavar="FILE",
        help="the server's file; made if it is not there",
    )
    parser.add_argument(
        "--scope",
        choices=SCOPES,
        default="client",
        help="client: answers; operator: changes of the deployment, too",
    )
    parser.add_argument(
        "--days", type=number(0, 36500), default=90.0, metavar="N", help="days until it expires; 0: never"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="write the token there, for --token-file (default: print it)",
    )


def run(args: argparse.Namespace) -> int:
    from colibri.cli.terminal import say
    from colibri.errors import ConfigError
    from colibri.security.secret_file import read_file, write_file
    from colibri.security.tokens import digest_of, iso, parse_tokens

    token = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    before = read_file(args.tokens, "--tokens", secret=True).decode() if args.tokens.exists() else ""
    expires = [iso(time.time() + 86400 * args.days)] if args.days else []
    line = " ".join([args.name, args.scope, digest_of(token), *expires])
    after = f"{before}{'' if before.endswith(chr(10)) or not before else chr(10)}{line}\n"
    parse_tokens(after, args.tokens, "--tokens")  # a name that is taken, or none
    try:
        if hasattr(args, "out"):
            write_file(args.out, f"{token}\n".encode(), secret=True)
        write_file(args.tokens, after.encode(), secret=True)
    except OSError as error:
        raise ConfigError(
            "--tokens", "a file that can be written", f"{args.tokens} ({error.strerror})"
        ) from None
    say(f"{args.tokens}: {args.name}, {args.scope}, {'until ' + expires[0] if expires else 'for ever'}")
    if not hasattr(args, "out"):
        print(token)
    return 0
