"""How tests of attacks say what they tried: the type of the fixture `tries`, and the sum over a run."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

#: Stands before the kind of attack in a test's properties, in reports as in JUnit files.
PREFIX = "tries."


class Tries(Protocol):
    def __call__(self, name: str, count: int) -> None:
        """Record that a kind of attack was tried `count` more times in this test."""


def total(properties: Iterable[tuple[str, object]]) -> Counter[str]:
    """Kind of attack -> tries, of a test's or many tests' properties."""
    found: Counter[str] = Counter()
    for name, value in properties:
        if name.startswith(PREFIX):
            found[name.removeprefix(PREFIX)] += int(str(value))
    return found


def of_junit(file: Path) -> Counter[str]:
    """The same of a file of `pytest --junitxml`. Tests that failed count, too: they were tried."""
    found = ET.parse(file).getroot().iter("property")
    return total((each.get("name", ""), each.get("value", "")) for each in found)
