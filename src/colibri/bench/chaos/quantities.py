"""Quantities as people write them in plans: 150ms, 2s, 3m; 1gbit; 0.5 or 50%."""

from __future__ import annotations

import math
import re

from colibri.errors import ConfigError

_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z%]*)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_MAX_S = 86400.0


def parse_seconds(value: object, field: str) -> float:
    """0 to a day. A unit is needed, but for 0."""
    return _parse(value, field, _SECONDS, "a time such as 150ms or 2s", 0.0, _MAX_S)


def parse_rate(value: object, field: str) -> float:
    """Bits per second, from 8 kbit."""
    return _parse(value, field, _BITS, "a rate such as 100mbit or 1gbit", 8e3, 1e12)


def parse_share(value: object, field: str) -> float:
    """0 to 1, or a percentage."""
    return _parse(value, field, {"": 1.0, "%": 0.01}, "a share such as 0.05 or 5%", 0.0, 1.0)


def _parse(
    value: object, field: str, units: dict[str, float], expected: str, low: float, high: float
) -> float:
    match = _NUMBER.fullmatch(str(value).strip().lower()) if not isinstance(value, bool) else None
    if match is None or (match[2] not in units and float(match[1]) != 0):
        raise ConfigError(field, expected, repr(value))
    number = float(match[1]) * units.get(match[2], 1.0)
    if not low <= number <= high or not math.isfinite(number):
        raise ConfigError(field, f"{expected}, from {low:g} to {high:g}", repr(value))
    return number
