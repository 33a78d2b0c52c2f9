"""How people write where a model is: a folder or a URL, and perhaps `#sha256=` with the digest of its pack.json."""

from __future__ import annotations

from pathlib import Path

from colibri.errors import ConfigError

_MARK = "#sha256="
_DIGITS = 64


def split_pin(place: str | Path) -> tuple[str | Path, str]:
    """The place without its pin, of the same type, and the pin: 64 hexadecimal digits, or empty. Raises ConfigError for
    another pin."""
    text, mark, pin = str(place).rpartition(_MARK)
    if not mark:
        return place, ""
    digest = pin.lower()
    if len(digest) != _DIGITS or set(digest) - set("0123456789abcdef"):
        raise ConfigError("MODEL", f"{_DIGITS} hexadecimal digits behind {_MARK}", repr(pin))
    return (Path(text) if isinstance(place, Path) else text), digest


def pinned(place: str, pin: str) -> str:
    """The other way round."""
    return f"{place}{_MARK}{pin}" if pin else place
