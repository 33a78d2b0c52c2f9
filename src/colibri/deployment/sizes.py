"""Write numbers of bytes for people."""

from __future__ import annotations


def size(nbytes: int) -> str:
    """Decimal units, three digits: 93.4 GB."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}"
