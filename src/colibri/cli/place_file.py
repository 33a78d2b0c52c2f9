"""A file of loads, checked and planned for: `colibri place --from-file FILE`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colibri.cluster.experts.holders import Holders, as_placement
from colibri.cluster.placing.planner.outcome import balance_of, moves
from colibri.cluster.placing.planner.plan import plan
from colibri.cluster.placing.planner.problem import Loads, Problem, Worker, check_loads
from colibri.cluster.placing.planner.seed import seed
from colibri.errors import ConfigError

_MAX_BYTES = 1 << 28
_KEYS = {"loads", "workers", "holders", "replicas", "expert_bytes"}


def plan_file(path: str, workers: int | None, replicas: int | None) -> dict[str, Any]:
    """The plan as `colibri place --dry-run --json` prints it. Raises ConfigError, naming the field."""
    document = _read(path)
    if "layers" in document:
        document = _of_status(document)
    unknown = sorted(set(document) - _KEYS)
    if unknown:
        raise ConfigError(f"{path}", f"the keys {', '.join(sorted(_KEYS))}", unknown[0])
    loads = _loads(document)
    known = _workers(document) if workers is None else [Worker(f"w{index}") for index in range(workers)]
    copies = replicas if replicas is not None else _integer(document, "replicas", 1)
    start = seed(len(loads), len(loads[0]), known, min(copies, len(known)))
    if "holders" in document and workers is None:
        start = _holders(document, len(loads), len(loads[0]))
    problem = Problem(tuple(known), start, copies, loads, _integer(document, "expert_bytes", 1))
    planned = plan(problem)
    names = [worker.name for worker in known]
    speeds = tuple(worker.speed for worker in known)
    gone = [name for experts in start for held in experts for name in held if name not in set(names)]
    order = list(dict.fromkeys([*names, *gone]))
    all_speeds = (*speeds, *[1.0] * (len(order) - len(names)))
    before = balance_of(as_placement(start, order, 1, None, all_speeds), loads)
    after = balance_of(as_placement(planned.holders, names, 1, loads, speeds), loads)
    gained, lost = moves(start, planned.holders)
    return {
        "before": {"worst": before.worst, "mean": before.mean, "slowdown": before.slowdown},
        "after": {"worst": after.worst, "mean": after.mean, "slowdown": after.slowdown},
        "gain": 1 - after.slowdown / before.slowdown,
        "bytes": len(gained) * problem.expert_bytes,
        "loads": [[move.worker, *move.expert] for move in gained],
        "drops": [[move.worker, *move.expert] for move in lost],
    }


def _read(path: str) -> Mapping[str, Any]:
    try:
        if Path(path).stat().st_size > _MAX_BYTES:
            raise ConfigError("--from-file", f"a file of at most {_MAX_BYTES} bytes", path)
        document = json.loads(Path(path).read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError("--from-file", "a readable JSON file", f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError("--from-file", "a JSON object", type(document).__name__)
    return document


def _of_status(document: Mapping[str, Any]) -> dict[str, Any]:
    """What `colibri status --loads --experts --json` prints."""
    numerics = str(document.get("expert_numerics_id", ""))
    if numerics.startswith("mixed("):
        expected = "the status of workers of one numerics id (the server itself plans for several)"
        raise ConfigError("--from-file", expected, numerics)
    try:
        loads = [[float(rows) for rows in layer["rows"]] for layer in document["layers"]]
        infos = [info for info in document["workers"] if info["state"] != "drained"]
        holders: list[list[list[str]]] = [[[] for _ in layer] for layer in loads]
        weights = 0
        for info in infos:
            for held in info["held"]:
                layer, _, expert = held.partition(":")
                holders[int(layer)][int(expert)].append(info["name"])
            weights = weights or int(info["weight_bytes"]) // max(1, len(info["held"]))
        found = {
            "loads": loads,
            "workers": [
                {"name": info["name"], "speed": float(info.get("compute_threads") or 1)} for info in infos
            ],
            "replicas": document["replicas"],
            "expert_bytes": max(1, weights),
        }
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            "--from-file", "the JSON of `colibri status --loads --experts --json`", repr(error)
        ) from None
    return {**found, "holders": holders} if all(all(layer) for layer in holders) else found


def _loads(document: Mapping[str, Any]) -> Loads:
    rows = document.get("loads")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        raise ConfigError("loads", "a list of loads for each layer", type(rows).__name__)
    for layer, row in enumerate(rows):
        for load in row:
            if isinstance(load, bool) or not isinstance(load, int | float):
                raise ConfigError(f"loads[{layer}]", "numbers", load)
    loads = tuple(tuple(map(float, row)) for row in rows)
    check_loads(loads, len(loads), len(loads[0]))
    return loads


def _workers(document: Mapping[str, Any]) -> list[Worker]:
    items = document.get("workers")
    if not isinstance(items, list) or not items:
        raise ConfigError("workers", "a list of workers, or --for-workers N", items)
    found = []
    for index, item in enumerate(items):
        field = f"workers[{index}]"
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise ConfigError(field, "an object with a name", item)
        unknown = sorted(set(item) - {"name", "host", "speed", "memory"})
        if unknown:
            raise ConfigError(field, "name, host, speed, memory", unknown[0])
        host, speed, memory = item.get("host", ""), item.get("speed", 1.0), item.get("memory")
        if not isinstance(host, str):
            raise ConfigError(f"{field}.host", "a name", host)
        if isinstance(speed, bool) or not isinstance(speed, int | float):
            raise ConfigError(f"{field}.speed", "a number", speed)
        if memory is not None and (isinstance(memory, bool) or not isinstance(memory, int)):
            raise ConfigError(f"{field}.memory", "bytes", memory)
        found.append(Worker(item["name"], host, float(speed), memory))
    return found


def _holders(document: Mapping[str, Any], layers: int, experts: int) -> Holders:
    rows = document["holders"]
    if not isinstance(rows, list) or len(rows) != layers:
        raise ConfigError("holders", f"a list of {layers} layers, as loads has", rows)
    for layer, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != experts:
            raise ConfigError(f"holders[{layer}]", f"a list of {experts} experts", row)
        for expert, names in enumerate(row):
            if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
                raise ConfigError(f"holders[{layer}][{expert}]", "a list of names, at least one", names)
            if len(set(names)) != len(names):
                raise ConfigError(f"holders[{layer}][{expert}]", "names that differ", names)
    return tuple(tuple(tuple(names) for names in row) for row in rows)


def _integer(document: Mapping[str, Any], key: str, default: int) -> int:
    value = document.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(key, "a whole number", value)
    return value
