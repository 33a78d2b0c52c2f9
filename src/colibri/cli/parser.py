"""argparse with precise refusals: every unknown verb, option or value is an error that names the nearest
match."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from colibri.cli.other_words import meant_option, meant_verb
from colibri.suggest import nearest


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Keeps paragraphs, leaves indented lines as they are, and tells no default of a switch, nor one that the text
    tells or that says nothing."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        told = action.nargs == 0 or action.default in (None, "") or "(default: " in (action.help or "")
        return action.help if told else super()._get_help_string(action)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.strip().split("\n\n")
        return "\n\n".join(
            part if part.startswith("  ") else super(HelpFormatter, self)._fill_text(part, width, indent)
            for part in paragraphs
        )


class Parser(argparse.ArgumentParser):
    """Options are never abbreviated: a new option must not change what an old command line means.

    deferred: adds the arguments, called when they are first needed, so that one verb's start does not import
    all others. verbs: the parsers of its verbs by name, where it has any.
    """

    def __init__(self, *args: Any, deferred: Callable[[Parser], None] | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", HelpFormatter)
        super().__init__(*args, **kwargs)
        self._deferred = deferred
        self.verbs: dict[str, Parser] = {}

    def fill(self) -> Parser:
        """This parser, with all its arguments."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred(self)
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        self.fill()
        parsed, extra = super().parse_known_args(args, namespace)
        if extra:
            self.refuse_unknown(extra[0])
        return parsed, extra

    def refuse_unknown(self, argument: str) -> NoReturn:
        written = argument.partition("=")[0]
        known = [option for action in self._actions for option in action.option_strings]
        alone = [action for action in self._actions if not action.option_strings and action.dest == "model"]
        if written in ("--model", "--model-path", "-m") and alone:
            self.error(f"unknown argument {argument!r}; the model stands alone: {self.prog} MODEL")
        near = meant_option(written.removeprefix("--"), known, "--{}".format, written)
        self.error(f"unknown argument {argument!r}{near}")

    def format_help(self) -> str:
        self.fill()
        return super().format_help()

    def format_usage(self) -> str:
        self.fill()
        return super().format_usage()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            if isinstance(action, argparse._SubParsersAction):
                near = meant_verb(str(value), [*choices, *self._option_string_actions])
            else:
                near = nearest(str(value), choices)
            raise argparse.ArgumentError(action, f"expected one of {', '.join(choices)}, got {value!r}{near}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def leaves(parser: Parser, path: Sequence[str] = ()) -> Iterable[tuple[tuple[str, ...], Parser]]:
    """(words after `colibri`, filled parser) of every verb below `parser` that does something itself."""
    parser.fill()
    for name, verb in parser.verbs.items():
        yield from leaves(verb, (*path, name))
    if not parser.verbs:
        yield tuple(path), parser


def model_place(text: str) -> Path | str:
    """An argparse type: a folder, or a URL, which must stay as it is."""
    return text if "://" in text else Path(text)


def hidden_byte(text: str) -> str | None:
    """Names the first byte that is no UTF-8: Python hides such bytes in surrogates, which no message can carry."""
    for at, character in enumerate(text):
        if "\udc80" <= character <= "\udcff":
            return f"byte {ord(character) - 0xDC00:02x} as character {at + 1}"
    return None


def plain_text(text: str) -> str:
    """An argparse type: text in UTF-8."""
    got = hidden_byte(text)
    if got is None:
        return text
    try:
        return os.fsencode(text).decode("utf-8")  # it was UTF-8, in a locale without it
    except UnicodeError:
        raise argparse.ArgumentTypeError(f"expected text in UTF-8, got {got}") from None


def integer(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: a whole number from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} to {high}, got {text!r}")
        return value

    return parse


def add_parent(parser: argparse.ArgumentParser) -> None:
    """For a process that somebody minds."""
    parser.add_argument(
        "--parent-pid",
        type=integer(1, 1 << 22),
        default=argparse.SUPPRESS,
        metavar="PID",
        help="end when this process does",
    )


def number(low: float, high: float) -> Callable[[str], float]:
    """An argparse type: a finite number from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected a number from {low:g} to {high:g}, got {text!r}")
        return value

    return parse
