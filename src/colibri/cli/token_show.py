"""Show the tokens of a server's file: names, scopes, ends."""

from __future__ import annotations

import argparse
import time
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the server's file")


def run(args: argparse.Namespace) -> int:
    from colibri.security.tokens import iso, read_tokens

    now = time.time()
    for token in read_tokens(args.file, "FILE"):
        end = "never expires" if token.expires is None else f"expires {iso(token.expires)}"
        if token.expires is not None and token.expires <= now:
            end = f"EXPIRED {iso(token.expires)}"
        print(f"{token.name:<24}  {token.scope.value:<9}  {end}")
    return 0
