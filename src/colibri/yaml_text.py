"""YAML of strangers, bounded before anything is made of it: in bytes, in depth, and in what aliases stand for."""

from __future__ import annotations

from typing import Any

import yaml

MAX_NODES = 20_000
MAX_DEPTH = 64
#: Of one value: a number's digits are read in a time that grows with their square.
MAX_SCALAR = 16 << 10


class YamlBomb(yaml.YAMLError):
    """More than any file of ours stands for."""


class _Loader(yaml.SafeLoader):
    """Stops reading at the first value too many, or too deep."""

    def __init__(self, raw: bytes | str) -> None:
        super().__init__(raw)
        self._nodes = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _too_many()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _too_deep()
        node: yaml.Node | None = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and len(node.value) > MAX_SCALAR:
            raise YamlBomb(f"a value of more than {MAX_SCALAR} characters")
        self._depth -= 1
        return node


def compose(raw: bytes | str) -> yaml.Node | None:
    """The document's nodes; None for an empty one. Raises yaml.YAMLError or UnicodeDecodeError.

    Aliases count as what they stand for: a few lines of them can mean billions of nodes, and mappings that are merged
    (`<<`), or told in an error, would make them all.
    """
    loader = _Loader(raw)
    try:
        root: yaml.Node | None = loader.get_single_node()
    finally:
        loader.dispose()
    if root is not None:
        _size(root, {})
    return root


def load(raw: bytes | str) -> Any:
    """As yaml.safe_load. Raises as `compose`, and yaml.YAMLError for a value that its tag does not fit."""
    root = compose(raw)
    if root is None:
        return None
    try:
        return yaml.SafeLoader("").construct_document(root)
    except (ValueError, RecursionError) as error:  # a date that is none, for one
        raise yaml.YAMLError(str(error)) from error


def _size(node: yaml.Node, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """How many nodes `node` stands for, itself included, and in how many levels. known: by identity; None while it is
    counted."""
    if id(node) in known:
        before = known[id(node)]
        if before is None:
            raise YamlBomb("an alias stands for something that it is a part of")
        return before
    known[id(node)] = None
    size, levels = 1, 0
    if isinstance(node, yaml.CollectionNode):
        for entry in node.value:
            for child in entry if isinstance(entry, tuple) else (entry,):
                more, below = _size(child, known)
                size, levels = size + more, max(levels, below)
    if size > MAX_NODES:
        raise _too_many()
    if levels >= MAX_DEPTH:
        raise _too_deep()
    known[id(node)] = size, levels + 1
    return size, levels + 1


def _too_many() -> YamlBomb:
    return YamlBomb(f"more than {MAX_NODES} values, aliases counted as what they stand for")


def _too_deep() -> YamlBomb:
    return YamlBomb(f"more than {MAX_DEPTH} levels")
