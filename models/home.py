"""Where Colibri keeps what it makes and fetches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def colibri_home(environ: Mapping[str, str]) -> Path:
    """Root of everything that Colibri keeps: $COLIBRI_HOME, else ~/.cache/colibri."""
    return Path(environ.get("COLIBRI_HOME") or Path.home() / ".cache" / "colibri")
