"""Ask recorded requests again and compare every token's receipt."""

from __future__ import annotations

import argparse
import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from colibri.cli import request_options
from colibri.cli.parser import integer, number

if TYPE_CHECKING:
    from colibri.cli.sources import Source
    from colibri.client.recording import Record

ABOUT = """
`colibri generate --record FILE` and `colibri chat --record FILE` append what they asked and got, one JSON object a
line. replay asks the same of a model or a server, alone or many at once, and says where an id, a receipt, a text or
an end is not as recorded. Receipts only compare on the same model and numerics; other records count as different.

Exit code 0: everything is as recorded. 1: something is not, or could not be asked.
"""


class Verdict(NamedTuple):
    """number: of the record in its file, from 1; differences: in words, empty when all is as recorded."""

    number: int
    tokens: int
    differences: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="records, as --record writes them")
    request_options.add_where(parser)
    parser.add_argument(
        "--at-once", type=integer(1, 256), default=1, metavar="N", help="requests under way at a time"
    )
    parser.add_argument(
        "--timeout",
        type=number(0.001, 1e6),
        default=600.0,
        metavar="S",
        help="seconds that an answer may take",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    from colibri.cli.sources import open_source
    from colibri.client.recording import read
    from colibri.deployment.phases import Phases, process_age_s
    from colibri.errors import ConfigError

    try:
        records = list(read(args.file))
    except OSError as error:
        raise ConfigError("FILE", "a file that can be read", error) from error
    if not records:
        raise ConfigError("FILE", "at least one record", f"none in {args.file}")
    with open_source(args, Phases(process_age_s())) as source, ThreadPoolExecutor(args.at_once) as pool:
        asked = [
            pool.submit(check, source, number, record, args.timeout)
            for number, record in enumerate(records, start=1)
        ]
        try:
            verdicts = []
            for each in asked:
                verdicts.append(each.result())
                if not args.json:
                    _print(verdicts[-1])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    same = sum(not verdict.differences for verdict in verdicts)
    if args.json:
        print(json.dumps({"same": same, "records": [verdict._asdict() for verdict in verdicts]}), flush=True)
    else:
        print(f"{same} of {len(verdicts)} records as recorded", flush=True)
    return 0 if same == len(verdicts) else 1


def check(source: Source, number: int, record: Record, timeout_s: float) -> Verdict:
    """Asks once. An answer that fails is a difference, since the recorded one did not."""
    from colibri.client import collect
    from colibri.client.recording import differences
    from colibri.errors import ColibriError

    tokens = sum(len(choice.ids) for choice in record.choices)
    others = [
        f"{what}: {now}, recorded on {before}"
        for what, before, now in (
            ("model", record.model_hash, source.model_hash),
            ("numerics", record.engine_numerics_id, source.engine_numerics_id),
        )
        if before != now
    ]
    if others:
        return Verdict(number, tokens, others)
    try:
        with contextlib.closing(source.start(record.request, timeout_s)) as events:
            return Verdict(number, tokens, differences(record, collect(events).all()))
    except ColibriError as error:
        return Verdict(number, tokens, [f"{type(error).__name__}: {error}"])


def _print(verdict: Verdict) -> None:
    from colibri.cli.terminal import shown

    state = "DIFFERS" if verdict.differences else "same"
    print(f"{verdict.number:>6}  {state:<8} {verdict.tokens:>7} tokens", flush=True)
    for line in verdict.differences:
        print(shown(f"        {line}"), flush=True)
