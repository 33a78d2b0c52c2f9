"""No option is accepted and then read by nobody."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

import colibri.cli
from colibri.cli import options
from colibri.cli.parser import Parser, leaves
from colibri.cli.verbs import build_parser

SOURCES = "\n".join(path.read_text() for path in Path(colibri.cli.__file__).parent.rglob("*.py"))


def test_every_option_is_read_somewhere() -> None:
    for path, parser in leaves(build_parser()):
        for action in parser._actions:
            if action.dest in ("help", "config"):
                continue
            read = re.search(rf"\bargs\.{action.dest}\b|[\"']{action.dest}[\"']", SOURCES)
            assert read, f"colibri {' '.join(path)}: nobody reads {action.option_strings or action.dest}"


def deployment_parser() -> Parser:
    parser = Parser(prog="deployment")
    options.add_deployment(parser, workers=2)
    return parser


def another(action: argparse.Action) -> list[str]:
    """Arguments that give the option a value which is not its default."""
    option = action.option_strings[0]
    if action.nargs == 0:
        return [option]
    if action.choices is not None:
        return [option, str(next(choice for choice in action.choices if choice != action.default))]
    candidates: list[str] = ["3", "5", "64", "unix:/tmp/x", "w0=n,10.0.0.1"]
    for text in candidates:
        try:
            value = action.type(text) if callable(action.type) else text
        except (argparse.ArgumentTypeError, ValueError):
            continue
        if value != action.default:
            return [option, text]
    raise AssertionError(f"no value for {option}")


@pytest.mark.parametrize(
    "action",
    [action for action in deployment_parser()._actions if action.dest != "help"],
    ids=lambda action: action.dest,
)
def test_every_deployment_option_changes_the_deployment(action: argparse.Action) -> None:
    def made(*argv: str) -> Any:
        return options.deployment_options(deployment_parser().parse_args(argv), Path("m"))

    usual = ["--workers", "4"] if action.dest != "workers" else []
    assert made(*usual, *another(action)) != made(*usual)
