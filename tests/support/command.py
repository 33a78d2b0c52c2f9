"""`colibri` in this process, found as the installed command finds it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points


def main(argv: Sequence[str]) -> int:
    """Runs `colibri` with these words after its name, and returns its exit code."""
    (command,) = entry_points(group="console_scripts", name="colibri")
    return int(command.load()(list(argv)))
