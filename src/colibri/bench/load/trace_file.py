"""Recorded traffic: one JSON object per line, as the public Mooncake traces are written.

{"timestamp": 27482, "input_length": 6955, "output_length": 52}: milliseconds, tokens, tokens. Other keys are
allowed and ignored (the public traces carry hashes of prompt blocks).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from colibri.bench.load.arrivals import MAX_REQUESTS, OpenLoop
from colibri.bench.load.lengths import MAX_LENGTH
from colibri.bench.load.workload import Shape
from colibri.errors import ConfigError

_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """timestamp_s: since the first entry."""

    timestamp_s: float
    input_length: int
    output_length: int


def read_trace(path: Path) -> tuple[TraceEntry, ...]:
    """Raises ConfigError naming the line and the key that is wrong."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(str(path), f"at most {_MAX_BYTES} bytes", path.stat().st_size)
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "a readable UTF-8 file", error) from error
    if len(lines) > MAX_REQUESTS:
        raise ConfigError(str(path), f"at most {MAX_REQUESTS} lines", len(lines))
    entries: list[TraceEntry] = []
    first: float | None = None
    before = 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        at, prompt, output = _parse(line, f"{path}:{number}")
        first = at if first is None else first
        offset = (at - first) / 1000
        if offset < before:
            raise ConfigError(f"{path}:{number}: timestamp", "no earlier than the line before", at)
        before = offset
        entries.append(TraceEntry(offset, prompt, output))
    if not entries:
        raise ConfigError(str(path), "at least one request", "none")
    return tuple(entries)


def trace_arrivals(entries: tuple[TraceEntry, ...], speed: float = 1.0) -> OpenLoop:
    """speed 2: twice as fast as recorded."""
    if not 0 < speed < float("inf"):
        raise ConfigError("trace speed", "a finite number above 0", speed)
    return OpenLoop(tuple(entry.timestamp_s / speed for entry in entries))


def trace_shape(entries: tuple[TraceEntry, ...]) -> Shape:
    """Lengths of request i from entry i; beyond the last one it begins again."""

    def shape(variant: int, rng: np.random.Generator) -> tuple[int, int]:
        entry = entries[variant % len(entries)]
        return entry.input_length, entry.output_length

    return shape


def _parse(line: str, where: str) -> tuple[float, int, int]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(where, "a JSON object", error) from None
    if not isinstance(entry, dict):
        raise ConfigError(where, "a JSON object", line)
    at = entry.get("timestamp")
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < float("inf"):
        raise ConfigError(f"{where}: timestamp", "milliseconds, 0 or more", at)
    lengths = []
    for key in ("input_length", "output_length"):
        length = entry.get(key)
        if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= MAX_LENGTH:
            raise ConfigError(f"{where}: {key}", f"a whole number from 1 to {MAX_LENGTH}", length)
        lengths.append(length)
    return float(at), lengths[0], lengths[1]
