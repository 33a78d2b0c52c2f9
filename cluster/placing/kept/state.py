"""Convert an operator's decisions to text and back. Pure; store.py stores the text.

Kept: who works, who was drained, which experts were moved by hand, and the placement with the loads it was planned for.
Beside them lies what the command line asked for at that time, so that a later command line that asks for something else
is heeded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from colibri.cluster.experts.holders import ExpertId, Holders
from colibri.cluster.placing.desired import MAX_WORKERS, Desired
from colibri.cluster.placing.planner.problem import Loads
from colibri.errors import InvalidInput

#: Of the text. A reader takes this one and no other: an older server must not half understand a newer one.
VERSION = 1
_VERSION_KEY = "colibri_desired_state"


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of the command line at the time when the state was written."""

    workers: int
    replicas: int


@dataclass(frozen=True, slots=True)
class KeptState:
    """workers: that hold experts; drained: by name, the host each was on, empty: not known; holders: names of
    `workers`; pinned: experts that were moved by hand."""

    asked: Asked
    workers: tuple[str, ...]
    drained: Mapping[str, str]
    holders: Holders
    pinned: frozenset[ExpertId] = field(default_factory=frozenset)
    loads: Loads | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, experts of each)"""
        return len(self.holders), len(self.holders[0])


def kept_of(desired: Desired, asked: Asked) -> KeptState:
    """What to keep of what is wanted now."""
    hosts = {name: desired.facts[name].host if name in desired.facts else "" for name in desired.drained}
    return KeptState(asked, desired.workers, hosts, desired.holders, desired.pinned, desired.loads)


def as_text(kept: KeptState) -> str:
    index = {name: position for position, name in enumerate(kept.workers)}
    document = {
        _VERSION_KEY: VERSION,
        "asked": {"workers": kept.asked.workers, "replicas": kept.asked.replicas},
        "workers": kept.workers,
        "drained": dict(kept.drained),
        "holders": [[[index[name] for name in names] for names in experts] for experts in kept.holders],
        "moved_by_hand": sorted(kept.pinned),
        "loads": kept.loads,
    }
    return json.dumps(document) + "\n"


def from_text(text: str) -> KeptState:
    """Raises InvalidInput, naming the field, for anything that `as_text` does not write."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("state", "JSON", error) from error
    if not isinstance(document, dict):
        raise InvalidInput("state", "a JSON object", type(document).__name__)
    if document.get(_VERSION_KEY) != VERSION:
        raise InvalidInput(_VERSION_KEY, str(VERSION), document.get(_VERSION_KEY, "none"))
    asked = _object(document, "asked")
    workers = _names(document.get("workers"), "workers", least=1)
    drained = _object(document, "drained")
    _names(list(drained), "drained")
    both = sorted(set(workers).intersection(drained))
    if both:
        raise InvalidInput("drained", "workers that are not among `workers` too", both[0])
    for name, host in drained.items():
        if not isinstance(host, str):
            raise InvalidInput(f"drained.{name}", "the name of a host", host)
    holders = _holders(document.get("holders"), workers)
    shape = len(holders), len(holders[0])
    return KeptState(
        Asked(
            _integer(asked.get("workers"), "asked.workers", 1),
            _integer(asked.get("replicas"), "asked.replicas", 1),
        ),
        workers,
        drained,
        holders,
        _experts(document.get("moved_by_hand"), shape),
        _loads(document.get("loads"), shape),
    )


def _object(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name)
    if not isinstance(found, dict):
        raise InvalidInput(name, "a JSON object", found)
    return found


def _integer(value: Any, name: str, least: int, most: int = 1 << 30) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(name, f"an integer from {least} to {most}", value)
    return value


def _list(value: Any, name: str, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        expected = "a list" if length is None else f"a list of {length}"
        raise InvalidInput(name, expected, f"one of {len(value)}" if isinstance(value, list) else value)
    return value


def _names(value: Any, name: str, least: int = 0) -> tuple[str, ...]:
    names = _list(value, name)
    for item in names:
        if not (isinstance(item, str) and item[:1] == "w" and item[1:].isdecimal() and item.isascii()):
            raise InvalidInput(name, "workers' names, as w0", item)
    if not least <= len(names) <= MAX_WORKERS or len(set(names)) != len(names):
        raise InvalidInput(name, f"{least} to {MAX_WORKERS} names that differ", f"{len(names)} names")
    return tuple(names)


def _holders(value: Any, workers: tuple[str, ...]) -> Holders:
    found: list[tuple[tuple[str, ...], ...]] = []
    width: int | None = None
    for layer, experts in enumerate(_list(value, "holders")):
        row = []
        for expert, indices in enumerate(_list(experts, f"holders[{layer}]", width)):
            name = f"holders[{layer}][{expert}]"
            chosen = [_integer(index, name, 0, len(workers) - 1) for index in _list(indices, name)]
            if not chosen or len(set(chosen)) != len(chosen):
                raise InvalidInput(name, "one worker or more, each once", chosen)
            row.append(tuple(workers[index] for index in chosen))
        width = len(row)
        found.append(tuple(row))
    if not found or not width:
        raise InvalidInput("holders", "a layer of experts or more", "none")
    return tuple(found)


def _experts(value: Any, shape: tuple[int, int]) -> frozenset[ExpertId]:
    name = "moved_by_hand"
    found = set()
    for item in _list(value, name):
        layer, expert = _list(item, name, 2)
        found.add((_integer(layer, name, 0, shape[0] - 1), _integer(expert, name, 0, shape[1] - 1)))
    return frozenset(found)


def _loads(value: Any, shape: tuple[int, int]) -> Loads | None:
    if value is None:
        return None
    rows = []
    for layer, row in enumerate(_list(value, "loads", shape[0])):
        name = f"loads[{layer}]"
        loads = _list(row, name, shape[1])
        for load in loads:
            if isinstance(load, bool) or not isinstance(load, (int, float)) or not isfinite(load) or load < 0:
                raise InvalidInput(name, "finite numbers, none negative", load)
        rows.append(tuple(float(load) for load in loads))
    return tuple(rows)
