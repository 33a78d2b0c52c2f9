"""The log line: how every verb speaks while it runs."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """One line on stderr, whole even when several threads speak."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
