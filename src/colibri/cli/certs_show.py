"""Show the certificates of a folder, and when they end."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from colibri.cli.parser import number

ABOUT = """
Reads certificates alone: it works on every host, without ca.key. Exit code 1: one ends within --within days, or has.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with *.pem, or one such file")
    parser.add_argument(
        "--within",
        type=number(0, 36500),
        default=0.0,
        metavar="DAYS",
        help="what ends so soon counts as ended",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    from colibri.cli.certs import authority
    from colibri.cli.terminal import shown
    from colibri.errors import ConfigError

    module = authority()
    paths = sorted(args.folder.glob("*.pem")) if args.folder.is_dir() else [args.folder]
    if not paths:
        raise ConfigError("DIR", "a folder with certificates (*.pem)", f"none in {args.folder}")
    now = module.utc_now()
    rows = []
    for path in paths:
        found = module.describe(path)
        rows.append(
            {
                "name": found.name,
                "role": "CA" if found.name == module.CA_NAME else found.role.value if found.role else "none",
                "names": list(found.names),
                "not_after": found.not_after.isoformat(),
                "days_left": round((found.not_after - now).total_seconds() / 86400, 1),
            }
        )
    if args.json:
        print(json.dumps({"certificates": rows}))
    else:
        width = max(len(row["name"]) for row in rows)
        for row in rows:
            left = row["days_left"]
            state = f"EXPIRED {-left:g} days ago" if left <= 0 else f"{left:g} days left"
            line = (
                f"{row['name']:<{width}}  {row['role']:<11}  {row['not_after'][:10]}  {state:<16}"
                f"  {', '.join(row['names'])}"
            )
            print(shown(line.rstrip()))
    return 1 if any(row["days_left"] <= args.within for row in rows) else 0
