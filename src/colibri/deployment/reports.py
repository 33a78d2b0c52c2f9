"""Callbacks by which a deployment reports its start and its life, and their defaults."""

from __future__ import annotations

import logging
from collections.abc import Callable

#: Takes one line for people.
Log = Callable[[str], None]
#: Takes the name of a task, how many units of it are done, and of how many. Any thread may call it.
Progress = Callable[[str, int, int], None]
#: Takes the name of a phase that has just ended.
Milestone = Callable[[str], None]

_LOGGER = logging.getLogger("colibri.deployment")


def to_logging(line: str) -> None:
    """Writes a line to the logger `colibri.deployment`, at level INFO."""
    _LOGGER.info("%s", line)


def no_progress(task: str, done: int, total: int) -> None:
    """Ignores progress."""


def no_milestone(phase: str) -> None:
    """Ignores a milestone."""
