"""A model's location, as people write it: a folder or a URL, perhaps with `#sha256=` and its pack.json's digest."""

from __future__ import annotations

from pathlib import Path

from colibri.errors import ConfigError

_MARK = "#sha256="
_DIGITS = 64


def split_pin(location: str | Path) -> tuple[str | Path, str]:
    """Split a location into the location without its pin, of the same type, and the pin.

    Returns a pin of 64 hexadecimal digits, or an empty one where the location has none.
    Raises ConfigError for any other pin.
    """
    text, mark, pin = str(location).rpartition(_MARK)
    if not mark:
        return location, ""
    digest = pin.lower()
    if len(digest) != _DIGITS or set(digest) - set("0123456789abcdef"):
        raise ConfigError("MODEL", f"{_DIGITS} hexadecimal digits behind {_MARK}", repr(pin))
    return (Path(text) if isinstance(location, Path) else text), digest


def pinned(location: str, pin: str) -> str:
    """Join what `split_pin` split."""
    return f"{location}{_MARK}{pin}" if pin else location
