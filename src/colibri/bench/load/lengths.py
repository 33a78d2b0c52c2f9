"""Distributions of lengths, in tokens: fixed, uniform, lognormal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from colibri.errors import ConfigError

#: Above any context; keeps a slip of the keyboard from allocating.
MAX_LENGTH = 1 << 20


class Lengths(Protocol):
    def draw(self, rng: np.random.Generator) -> int:
        """A length of at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    length: int

    def __post_init__(self) -> None:
        _check("length", self.length, 1)

    def draw(self, rng: np.random.Generator) -> int:
        return self.length


@dataclass(frozen=True, slots=True)
class Uniform:
    """low and high: both inclusive."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check("low", self.low, 1)
        _check("high", self.high, self.low)

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high, endpoint=True))


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp of a normal with mean ln(median) and deviation sigma, rounded; what lies outside 1 .. high becomes
    the nearer end."""

    median: float
    sigma: float
    high: int

    def __post_init__(self) -> None:
        _check("high", self.high, 1)
        if not 1 <= self.median <= self.high:
            raise ConfigError("lognormal median", f"1 to {self.high}", self.median)
        if not 0 <= self.sigma <= 10:
            raise ConfigError("lognormal sigma", "0 to 10", self.sigma)

    def draw(self, rng: np.random.Generator) -> int:
        drawn = rng.lognormal(math.log(self.median), self.sigma)
        return max(1, round(min(drawn, float(self.high))))


def parse_lengths(text: str, field: str) -> Lengths:
    """From "N", "uniform:LOW:HIGH" or "lognormal:MEDIAN:SIGMA:MAX". Raises ConfigError naming `field`."""
    kind, *parts = text.split(":")
    try:
        if not parts:
            return Fixed(int(kind))
        if kind == "uniform" and len(parts) == 2:
            return Uniform(int(parts[0]), int(parts[1]))
        if kind == "lognormal" and len(parts) == 3:
            return LogNormal(float(parts[0]), float(parts[1]), int(parts[2]))
    except ConfigError as error:
        raise ConfigError(field, str(error), text) from None
    except ValueError:
        pass
    raise ConfigError(field, "N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MAX", text)


def _check(field: str, value: int, low: int) -> None:
    if not low <= value <= MAX_LENGTH:
        raise ConfigError(field, f"{low} to {MAX_LENGTH}", value)
