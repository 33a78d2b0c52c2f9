"""One line of a table of verbs."""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """summary: the first line of the module's docstring, so that help needs no import. module: has
    `add_arguments(parser)` and `run(args) -> exit code`, or, for a group of verbs, a table `VERBS` of its
    own; either may have `ABOUT`, more text for its help."""

    summary: str
    module: str
