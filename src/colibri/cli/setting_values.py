"""An option's value from text that stood in a file or in the environment: through the option's own type, choices
and kind (switch, list), with errors that name where the text stood."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from colibri.cli.parser import Parser

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def from_variable(parser: Parser, action: argparse.Action, text: str, label: str) -> Any:
    """From an environment variable; a list stands there with commas between. Ends the program (exit code 2) for what
    is wrong; `label` names the source."""
    return _value(parser, action, text.split(",") if _is_list(action) else [text], label)


def from_entry(parser: Parser, action: argparse.Action, value: str | tuple[str, ...], label: str) -> Any:
    """From a file's scalar, or list of scalars, as `from_variable`."""
    if isinstance(value, str):
        return _value(parser, action, [value], label)
    if not _is_list(action):
        parser.error(f"{label}: expected one value, got a list of {len(value)}")
    if not value:
        parser.error(f"{label}: expected at least one value, got an empty list")
    return _value(parser, action, value, label)


def _value(parser: Parser, action: argparse.Action, texts: Sequence[str], label: str) -> Any:
    if _is_list(action):
        return [_convert(parser, action, text, label) for text in texts]
    convert = _switch if _is_switch(action) else _convert
    return convert(parser, action, texts[0], label)


def _is_list(action: argparse.Action) -> bool:
    many = action.nargs in (argparse.ONE_OR_MORE, argparse.ZERO_OR_MORE)
    return many or isinstance(action, argparse._AppendAction)


def _is_switch(action: argparse.Action) -> bool:
    return isinstance(action, argparse.BooleanOptionalAction) or action.nargs == 0


def _switch(parser: Parser, action: argparse.Action, text: str, label: str) -> Any:
    word = text.lower()
    if word not in (*_TRUE, *_FALSE):
        parser.error(f"{label}: expected true or false, got {text!r}")
    if isinstance(action, argparse.BooleanOptionalAction):
        return word in _TRUE
    return action.const if word in _TRUE else action.default


def _convert(parser: Parser, action: argparse.Action, text: str, label: str) -> Any:
    try:
        value = parser._get_value(action, text)
        parser._check_value(action, value)
    except argparse.ArgumentError as error:
        parser.error(f"{label}: {error.message}")
    return value
