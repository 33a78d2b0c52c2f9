"""Where an option's value comes from: flags beat the environment beats a file beats the default.

Every option of a verb is a setting: `--kv-page 32`, `COLIBRI_KV_PAGE=32`, or `kv-page: 32` in the file that
`--config` names. Its text goes through the option's own type and choices, wherever it stood.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from colibri.cli.other_words import meant_option
from colibri.cli.parser import Parser, leaves
from colibri.cli.setting_values import from_entry, from_variable

if TYPE_CHECKING:
    from colibri.cli.config_file import ConfigFile

PREFIX = "COLIBRI_"
CONFIG = "config"
CONFIG_VARIABLE = "COLIBRI_CONFIG"
#: Value of --config: neither a file nor the environment.
NONE = "none"
#: Variables that are read elsewhere, and the beginnings of those that tests and benchmarks read.
OTHER_VARIABLES = ("COLIBRI_HOME", "COLIBRI_ISA", "COLIBRI_CPU_LOCKS", CONFIG_VARIABLE)
_DEVELOPERS = ("COLIBRI_TEST_", "COLIBRI_BENCH_", "COLIBRI_PEERS_", "COLIBRI_VLLM_", "COLIBRI_LLAMA_")
# Kubernetes gives every pod such variables for each service; one of them may be called colibri.
_SERVICE_LINK = re.compile(
    r"COLIBRI(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)"
)


class Resolved(NamedTuple):
    """A setting's value and its source. value: argparse.SUPPRESS where the program decides later. source: 'flag',
    'environment', 'file' or 'default'; where: the variable, or file and line."""

    key: str
    dest: str
    value: Any
    source: str
    where: str = ""


class VerbParser(Parser):
    """The parser of a verb. root: that of `colibri`, whose verbs share the file and the environment."""

    def __init__(self, *args: Any, root: Parser, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.root = root

    def fill(self) -> Parser:
        if self._deferred is not None:
            super().fill()
            if not self.verbs and settings(self):
                self.add_argument(
                    "--config",
                    metavar="FILE",
                    default=argparse.SUPPRESS,
                    help=f"take options from this YAML file (default: ${CONFIG_VARIABLE}); {NONE}: neither from "
                    "a file nor from the environment",
                )
                self.epilog = self.epilog or (
                    "Each option may also come from the environment (COLIBRI_ and its name, as COLIBRI_KV_PAGE) or "
                    "from a --config file; flags beat the environment, which beats the file."
                )
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        self.fill()
        if self.verbs or {"-h", "--help"} & set(args or ()):
            return super().parse_known_args(args, namespace)
        found = resolve(self, list(args or ()), os.environ)
        for item in found:
            if item.source in ("environment", "file"):
                _preset(self, item)
        parsed, extra = super().parse_known_args(args, namespace)
        parsed.option_sources = found
        return parsed, extra


def settings(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Key -> option. A key is the long option without its dashes, or the name of a positional argument."""
    found = {}
    for action in parser._actions:
        if action.dest in ("help", "version", CONFIG) or action.nargs in (
            argparse.PARSER,
            argparse.REMAINDER,
        ):
            continue
        names = [option[2:] for option in action.option_strings if option.startswith("--")]
        if names or not action.option_strings:
            found[names[0] if names else action.dest.replace("_", "-")] = action
    return found


def variable(key: str) -> str:
    """The environment's name of a setting."""
    return PREFIX + key.upper().replace("-", "_")


def resolve(parser: VerbParser, args: Sequence[str], environ: Mapping[str, str]) -> list[Resolved]:
    """Every setting of a verb's parser, for its command line `args`, required ones perhaps without a value.

    Ends the program (exit code 2) as argparse does for what is wrong in any of the sources.
    """
    flags = _explicit(parser, args)
    named = str(getattr(flags, CONFIG, environ.get(CONFIG_VARIABLE, "")))
    outside = named != NONE
    file = _read(parser, named) if named and outside else None
    if outside:
        _check_variables(parser, environ)
    path = tuple(parser.prog.split()[1:])
    found = []
    for key, action in settings(parser).items():
        value, source, where = action.default, "default", ""
        name = variable(key)
        entry = file.find(path, key) if file else None
        if hasattr(flags, action.dest):
            value, source = getattr(flags, action.dest), "flag"
        elif any(hasattr(flags, other.dest) for other in _rivals(parser, action)):
            pass  # a flag that excludes this option beats what is said of it elsewhere
        elif outside and environ.get(name):
            source, where = "environment", name
            value = from_variable(parser, action, environ[name], name)
        elif file is not None and entry is not None:
            source, where = "file", f"{file.path}:{entry.line}"
            value = from_entry(parser, action, entry.value, f"{where}: {key}")
        found.append(Resolved(key, action.dest, value, source, where))
    _check_exclusive(parser, found)
    return found


def _explicit(parser: VerbParser, args: Sequence[str]) -> argparse.Namespace:
    """What the command line itself says."""
    kept = [(action, action.default, action.required) for action in parser._actions]
    groups = [(group, group.required) for group in parser._mutually_exclusive_groups]
    for action, _, _ in kept:
        action.default, action.required = argparse.SUPPRESS, False
    for group, _ in groups:
        group.required = False
    try:
        flags, extra = argparse.ArgumentParser.parse_known_args(parser, list(args), argparse.Namespace())
    finally:
        for action, default, required in kept:
            action.default, action.required = default, required
        for group, required in groups:
            group.required = required
    if extra:
        parser.refuse_unknown(extra[0])
    return flags


def _preset(parser: VerbParser, item: Resolved) -> None:
    """Makes a value from outside the command line the default of its option."""
    for action in parser._actions:
        if action.dest == item.dest:
            action.default, action.required = item.value, False
            if not action.option_strings and action.nargs in (None, argparse.ONE_OR_MORE):
                action.nargs = argparse.OPTIONAL if action.nargs is None else argparse.ZERO_OR_MORE
    for group in parser._mutually_exclusive_groups:
        if any(action.dest == item.dest for action in group._group_actions):
            group.required = False


def _rivals(parser: VerbParser, action: argparse.Action) -> Iterable[argparse.Action]:
    for group in parser._mutually_exclusive_groups:
        if action in group._group_actions:
            yield from (other for other in group._group_actions if other is not action)


def _check_exclusive(parser: VerbParser, found: Sequence[Resolved]) -> None:
    given = {item.dest: item for item in found if item.source in ("environment", "file")}
    for action in parser._actions:
        for other in _rivals(parser, action):
            if action.dest in given and other.dest in given and action.dest != other.dest:
                one, two = given[action.dest], given[other.dest]
                parser.error(f"{two.where}: {two.key} excludes {one.key} of {one.where}")


def _read(parser: VerbParser, name: str) -> ConfigFile:
    from pathlib import Path

    from colibri.cli.config_file import read_config
    from colibri.errors import ConfigError

    try:
        file = read_config(Path(name))
        file.check({path: set(settings(leaf)) for path, leaf in leaves(parser.root)})
    except ConfigError as error:
        parser.error(error.message)
    return file


def _check_variables(parser: VerbParser, environ: Mapping[str, str]) -> None:
    known = {variable(key) for key in settings(parser)}.union(OTHER_VARIABLES)
    unknown = [
        name
        for name in environ
        if name.startswith(PREFIX)
        and name not in known
        and not name.startswith(_DEVELOPERS)
        and not _SERVICE_LINK.fullmatch(name)
    ]
    if unknown:  # another verb's, perhaps
        known.update(variable(key) for _, leaf in leaves(parser.root) for key in settings(leaf))
        for name in sorted(unknown):
            if name not in known:
                bare = name.removeprefix(PREFIX).lower().replace("_", "-")
                near = meant_option(bare, known, variable, name)
                parser.error(f"environment: no option goes by {name}{near}")
