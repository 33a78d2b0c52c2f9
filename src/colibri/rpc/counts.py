"""How many elements a message holds, counted in its bytes: protobuf would make an object of each before anybody asks.

Only fields that a service names are counted, and counting stops at the bound. Bytes that are no message are left to
protobuf, which refuses them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from colibri.errors import InvalidInput

#: Fields of one message beside those that are counted.
MOST_FIELDS = 1 << 14
_VARINT, _64_BITS, _DELIMITED, _GROUP, _GROUP_ENDS, _32_BITS = range(6)
_FIXED = {_64_BITS: 8, _32_BITS: 4}


@dataclass(frozen=True, slots=True)
class Most:
    """How many elements a repeated field may have.

    unit: what they are, in errors.
    expected: what errors say is expected, in place of "at most {count} {unit}".
    """

    count: int
    unit: str
    expected: str = ""

    def refusal(self, path: str, got: str) -> InvalidInput:
        return InvalidInput(path, self.expected or f"at most {self.count} {self.unit}", f"{got} {self.unit}")


@dataclass(slots=True)
class _Node:
    """A field on the way to one that is counted, or that one. packed: its elements may lie in one field."""

    path: str = ""
    most: Most | None = None
    packed: bool = False
    inside: dict[int, _Node] = field(default_factory=dict)


class Counts:
    """Of one type of message.

    descriptor: of the type.
    most: by the path of a repeated field, e.g. "chat.messages". Raises KeyError for a path that does not exist.
    """

    def __init__(self, descriptor: Any, most: Mapping[str, Most]) -> None:
        self._root = _Node()
        for path, bound in most.items():
            node, kind = self._root, descriptor
            for name in path.split("."):
                found = kind.fields_by_name[name]
                node = node.inside.setdefault(found.number, _Node())
                kind = found.message_type
            node.path, node.most, node.packed = path, bound, found.is_packed

    def check(self, data: bytes) -> None:
        """Raises InvalidInput for too many elements of a field, and for a message of too many fields."""
        _Check(data).walk(self._root, 0, len(data))


class _Check:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._fields = 0
        self._found: Counter[str] = Counter()

    def walk(self, node: _Node, at: int, end: int) -> None:
        for number, wire, begin, until in self._fields_of(at, end):
            below = node.inside.get(number)
            if below is not None and below.most is not None:
                self._count(below, below.most, wire, begin, until)
                continue
            self._fields += 1
            if self._fields > MOST_FIELDS:
                raise InvalidInput("request", f"at most {MOST_FIELDS} fields", "more")
            if below is not None and wire == _DELIMITED:
                self.walk(below, begin, until)

    def _count(self, node: _Node, most: Most, wire: int, begin: int, until: int) -> None:
        found = self._found
        if node.packed and wire == _DELIMITED:
            # The last byte of a varint, and no other, is below 128.
            found[node.path] += int(
                np.count_nonzero(np.frombuffer(self._data, np.uint8, until - begin, begin) < 128)
            )
            if found[node.path] > most.count:
                raise most.refusal(node.path, str(found[node.path]))
            return
        found[node.path] += 1
        if found[node.path] > most.count:
            raise most.refusal(node.path, f"more than {most.count}")

    def _fields_of(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Number, wire type, begin and end of each field's value. Ends where the bytes are no message."""
        data, groups = self._data, 0
        while at < end:
            tag, at = _varint(data, at, end)
            wire = tag & 7
            if wire == _VARINT:
                begin, (_, at) = at, _varint(data, at, end)
            elif wire == _DELIMITED:
                size, begin = _varint(data, at, end)
                at = begin + size
            elif wire in _FIXED:
                begin, at = at, at + _FIXED[wire]
            elif wire in (_GROUP, _GROUP_ENDS):
                begin = at
                groups += 1 if wire == _GROUP else -1
            else:
                return
            if at > end or groups < 0:
                return
            # No type here has groups: what is in them is a field of nothing.
            yield 0 if groups else tag >> 3, wire, begin, at


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The value, and where the next byte lies: beyond the end where there is no whole value."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, end + 1
