"""A file of options: YAML whose keys are long options without their dashes, at the top for all verbs that have
them, or in a section for one verb.

    model: /models/mixtral
    workers: 4
    serve:
      listen: 127.0.0.1:50051

Scalars are kept as they are written: an option's own type reads them, so that a file means what the command
line would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from colibri import yaml_text
from colibri.cli.other_words import meant_option
from colibri.errors import ConfigError

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One key. line: where it stands, from 1; value: text, a list of texts, or a section."""

    line: int
    value: str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Keys and the sections below, by name."""

    line: int
    entries: Mapping[str, Entry]
    sections: Mapping[str, Section]


@dataclass(frozen=True, slots=True)
class ConfigFile:
    path: Path
    top: Section

    def find(self, verb: Sequence[str], key: str) -> Entry | None:
        """The value for an option of a verb: its own section goes before those around it."""
        found, section = self.top.entries.get(key), self.top
        for word in verb:
            below = section.sections.get(word)
            if below is None:
                break
            section = below
            found = section.entries.get(key, found)
        return found

    def check(self, verbs: Mapping[tuple[str, ...], set[str]]) -> None:
        """Raises ConfigError for the first key that no verb it applies to has as an option. verbs: a verb's
        words -> its keys."""
        self._check(self.top, (), verbs)

    def _check(
        self, section: Section, path: tuple[str, ...], verbs: Mapping[tuple[str, ...], set[str]]
    ) -> None:
        below = {words: keys for words, keys in verbs.items() if words[: len(path)] == path}
        options = set().union(*below.values())
        names = {words[len(path)] for words in below if len(words) > len(path)}
        where = "any verb" if not path else "`colibri " + " ".join(path) + "`"
        for key, entry in section.entries.items():
            if key not in options:
                expected = "a section of options" if key in names else f"an option of {where}"
                near = "" if key in names else meant_option(key, options | names)
                raise ConfigError(f"{self.path}:{entry.line}", expected, f"{key!r}{near}")
        for key, inner in section.sections.items():
            if key not in names:
                expected = "a value" if key in options else f"the name of a verb or an option of {where}"
                got = f"a section {key!r}{'' if key in options else meant_option(key, options | names)}"
                raise ConfigError(f"{self.path}:{inner.line}", expected, got)
            self._check(inner, (*path, key), verbs)


def read_config(path: Path) -> ConfigFile:
    """Raises ConfigError that names file and line for what cannot be read or is no such YAML."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError("--config", "a file that can be read", f"{path} ({error.strerror})") from error
    if len(raw) > _MAX_BYTES:
        raise ConfigError(str(path), f"at most {_MAX_BYTES} bytes", "more")
    try:
        root = yaml_text.compose(raw)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}", "YAML", error.problem or "something else") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "YAML", str(error)) from error
    if root is None:
        return ConfigFile(path, Section(1, {}, {}))
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path}:{_line(root)}", "keys with values", _kind(root))
    return ConfigFile(path, _section(path, root, _MAX_DEPTH))


def _section(path: Path, node: yaml.MappingNode, depth: int) -> Section:
    entries: dict[str, Entry] = {}
    sections: dict[str, Section] = {}
    for name, value in node.value:
        where = f"{path}:{_line(name)}"
        if not isinstance(name, yaml.ScalarNode):
            raise ConfigError(where, "a name as key", _kind(name))
        key = name.value
        before = entries.get(key) or sections.get(key)
        if before is not None:
            raise ConfigError(where, "each key once", f"{key!r} again (line {before.line})")
        if isinstance(value, yaml.MappingNode):
            if depth == 0:
                raise ConfigError(where, f"sections at most {_MAX_DEPTH} deep", key)
            sections[key] = _section(path, value, depth - 1)
        elif isinstance(value, yaml.SequenceNode):
            entries[key] = Entry(_line(name), tuple(_scalar(where, key, item) for item in value.value))
        else:
            entries[key] = Entry(_line(name), _scalar(where, key, value))
    return Section(_line(node), entries, sections)


def _scalar(where: str, key: str, node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(where, f"a plain value in {key}", _kind(node))
    if node.tag == "tag:yaml.org,2002:null":
        raise ConfigError(where, f"a value for {key}", "none")
    return str(node.value)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _kind(node: yaml.Node) -> str:
    return {yaml.ScalarNode: "a value", yaml.SequenceNode: "a list", yaml.MappingNode: "a section"}.get(
        type(node), "something else"
    )
