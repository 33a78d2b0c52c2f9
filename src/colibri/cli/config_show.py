"""Show the options of a verb, or of all, with the source of each."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from colibri.cli.other_words import meant_verb
from colibri.cli.parser import Parser, leaves
from colibri.cli.settings import CONFIG_VARIABLE, Resolved, VerbParser, resolve
from colibri.errors import ConfigError

ABOUT = """
Options of `config show` itself stand before the verb; what follows the verb is read as that verb's own command line:

  colibri config show --resolved --config colibri.yaml serve --workers 3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--resolved", action="store_true", help="every option, those that nothing was said about included"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="VERB ...",
        help="a verb and its arguments; none: all verbs",
    )


def run(args: argparse.Namespace) -> int:
    from colibri.cli.verbs import build_parser

    environ = dict(os.environ)
    if hasattr(args, "config"):
        environ[CONFIG_VARIABLE] = args.config
    found = {
        " ".join(path): [
            item for item in resolve(leaf, rest, environ) if args.resolved or item.source != "default"
        ]
        for path, leaf, rest in _asked(build_parser(), args.words)
    }
    if args.json:
        print(json.dumps({verb: _document(items) for verb, items in found.items()}))
        return 0
    for verb, items in found.items():
        if items or len(found) == 1:
            print("\n".join([f"colibri {verb}", *(_lines(items) or ["  every option has its default"])]))
    if not any(found.values()) and len(found) > 1:
        print("every option of every verb has its default")
    return 0


def _asked(root: Parser, words: Sequence[str]) -> list[tuple[tuple[str, ...], VerbParser, list[str]]]:
    """(verb, its parser, the rest of the command line) of what is to be shown."""
    parser, rest = root, list(words)
    path: tuple[str, ...] = ()
    while parser.verbs and rest:
        word = rest.pop(0)
        if word not in parser.verbs:
            raise ConfigError(
                "VERB", f"one of {', '.join(parser.verbs)}", f"{word!r}{meant_verb(word, parser.verbs)}"
            )
        parser, path = parser.verbs[word].fill(), (*path, word)
    below = [((*path, *more), leaf) for more, leaf in leaves(parser)]
    return [(words, leaf, rest) for words, leaf in below if isinstance(leaf, VerbParser)]


def _shown(value: Any) -> Any:
    """As JSON; None for what the program decides at its start."""
    if value is None or value == argparse.SUPPRESS:
        return None
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    return str(value)


def _document(items: Sequence[Resolved]) -> dict[str, dict[str, object]]:
    return {
        item.key: {"value": _shown(item.value), "source": item.source, "where": item.where} for item in items
    }


def _lines(items: Sequence[Resolved]) -> list[str]:
    rows = []
    for item in items:
        value = _shown(item.value)
        text = "-" if value is None else json.dumps(value) if not isinstance(value, str) else value
        rows.append((item.key, text, item.where or item.source))
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    return [f"  {key:<{widths[0]}}  {text:<{widths[1]}}  {where}" for key, text, where in rows]
