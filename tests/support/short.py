"""Short names for long folders: a socket's path must fit 107 bytes, and pytest's folders are long."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def short(folder: Path) -> Iterator[Path]:
    """Another name of the folder, for TMPDIR."""
    link = Path(tempfile.gettempdir()) / f"cb-{secrets.token_hex(6)}"
    link.symlink_to(folder, target_is_directory=True)
    try:
        yield link
    finally:
        link.unlink()
