"""One structure under stress: what its threads do, and what must hold afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


def nothing() -> None:
    """No check, nobody to wake."""


@dataclass(frozen=True, slots=True)
class Round:
    """operations: each is repeated by a thread of its own. wake: ends waits once the time is over; check: afterwards,
    raises AssertionError."""

    operations: Sequence[Callable[[], object]]
    check: Callable[[], None] = nothing
    wake: Callable[[], None] = nothing


@dataclass(frozen=True, slots=True)
class Case:
    """begin: a new structure and its operations."""

    name: str
    begin: Callable[[], Round]
