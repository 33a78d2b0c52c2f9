"""The Reach table of hardening: what attackers, operators, bad disks and dead processes do to a deployment."""

from __future__ import annotations

import importlib

from benchmarks.table import Line

#: In the order of the table; each module has `lines() -> list[Line]`.
_PARTS: tuple[str, ...] = (
    "streams",
    "sized_work",
    "flipped_bytes",
    "outputs",
    "control_plane",
    "attacks",
    "forced_states",
)


def lines() -> list[Line]:
    """All lines of `make reach TOPIC=hardening`."""
    return [line for part in _PARTS for line in importlib.import_module(f"{__name__}.{part}").lines()]
