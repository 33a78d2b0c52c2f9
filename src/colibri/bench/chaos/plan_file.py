"""Plan files: YAML, every key checked against what its place may hold.

seed: 7
serve: {model: demo, workers: 4, replicas: 2}
load: {users: 8, output_tokens: 64}
quiet: 10s
phases:
  - name: kills
    duration: 60s
    events:
      - {do: kill, every: 2s, count: 20}
      - {do: stop, worker: w1, at: [5s, 20s], for: 1s}
limits: {gap_over_quiet: 150ms}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from colibri import yaml_text
from colibri.bench.chaos.plan import (
    ANY,
    TAKING,
    WARM_S,
    WORKER_FAULTS,
    Action,
    EventSpec,
    Limits,
    LinkQuality,
    LoadSpec,
    NetworkSpec,
    Phase,
    Plan,
    ServeSpec,
)
from colibri.bench.chaos.plan import NETWORK as NETWORK_ACTIONS
from colibri.bench.chaos.quantities import parse_rate, parse_seconds, parse_share
from colibri.errors import ConfigError
from colibri.suggest import nearest

_MAX_BYTES = 1 << 20

Reader = Callable[[object, str], Any]


def read_plan(path: Path) -> Plan:
    """Raises ConfigError, naming the key, what was expected and what came."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError("PLAN", "a file that can be read", f"{path} ({error.strerror})") from None
    if len(text) > _MAX_BYTES:
        raise ConfigError("PLAN", f"at most {_MAX_BYTES} bytes", len(text))
    try:
        return parse_plan(yaml_text.load(text))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "YAML", error) from None


def parse_plan(data: object) -> Plan:
    """A plan from what a YAML parser made of it. Raises ConfigError as `read_plan`."""
    found = _section(
        data,
        "plan",
        {
            "seed": _whole(0, (1 << 63) - 1),
            "serve": _serve,
            "load": _load,
            "network": _network,
            "quiet": parse_seconds,
            "settle": parse_seconds,
            "phases": _phases,
            "limits": _limits,
        },
        {"seed": "seed", "quiet": "quiet_s", "settle": "settle_s"},
        needed=("seed", "quiet", "phases"),
    )
    plan = Plan(**found)
    if plan.quiet_s <= WARM_S:
        expected = f"more than {WARM_S:g} s, which is not counted: gaps are compared with it"
        raise ConfigError("quiet", expected, f"{plan.quiet_s:g} s")
    actions = plan.count()
    if plan.network is None and (missing := next((a for a in actions if a in NETWORK_ACTIONS), None)):
        raise ConfigError("network", f"a section, since the plan has {missing.value}", "none")
    if plan.network is not None and plan.serve is None:
        raise ConfigError("serve", "a section, since the plan has a network", "none")
    return plan


def _serve(data: object, path: str) -> ServeSpec:
    readers = {
        "model": _text,
        "workers": _whole(1, 256),
        "replicas": _whole(1, 256),
        "mtls": _switch,
        "options": _texts,
    }
    spec = ServeSpec(**_section(data, path, readers, needed=("model",)))
    if spec.replicas > spec.workers:
        raise ConfigError(f"{path}.replicas", f"at most {spec.workers}, the workers", spec.replicas)
    return spec


def _load(data: object, path: str) -> LoadSpec:
    readers = {
        "users": _whole(1, 4096),
        "prompt_tokens": _whole(1, 1 << 20),
        "output_tokens": _whole(2, 1 << 20),
        "distinct": _whole(1, 4096),
        "temperature": _number(0.0, 100.0),
        "request_timeout": parse_seconds,
    }
    return LoadSpec(**_section(data, path, readers, {"request_timeout": "request_timeout_s"}))


def _network(data: object, path: str) -> NetworkSpec:
    return NetworkSpec(_quality(_section(data, path, _QUALITY)))


def _limits(data: object, path: str) -> Limits:
    readers = {
        "failed": _whole(0, 1 << 31),
        "wrong": _whole(0, 1 << 31),
        "gap_over_quiet": parse_seconds,
        "p99_over_quiet": _number(1.0, 1e6),
        "events": _whole(0, 1 << 31),
    }
    return Limits(**_section(data, path, readers, {"gap_over_quiet": "gap_over_quiet_s"}))


def _phases(data: object, path: str) -> tuple[Phase, ...]:
    phases = tuple(_phase(item, f"{path}[{index}]") for index, item in enumerate(_list(data, path)))
    if not phases:
        raise ConfigError(path, "at least one phase", "none")
    return phases


def _phase(data: object, path: str) -> Phase:
    readers: dict[str, Reader] = {"name": _text, "duration": parse_seconds, "events": _list}
    found = _section(data, path, readers, needed=("name", "duration"))
    events = tuple(
        _event(item, f"{path}.events[{index}]") for index, item in enumerate(found.get("events", []))
    )
    for index, event in enumerate(events):
        late = [at for at in event.at_s if at >= found["duration"]]
        if late:
            raise ConfigError(
                f"{path}.events[{index}].at", f"below the phase's {found['duration']:g} s", f"{late[0]:g} s"
            )
    return Phase(found["name"], found["duration"], events)


_QUALITY: dict[str, Reader] = {"delay": parse_seconds, "loss": parse_share, "rate": parse_rate}


def _quality(found: Mapping[str, Any]) -> LinkQuality:
    return LinkQuality(found.get("delay", 0.0), found.get("loss", 0.0), found.get("rate"))


def _event(data: object, path: str) -> EventSpec:
    if not isinstance(data, dict):
        raise ConfigError(path, "a mapping with the key 'do'", repr(data))
    words = {action.value: action for action in Action}
    word = data.get("do")
    if word not in words:
        raise ConfigError(f"{path}.do", "one of " + ", ".join(words), f"{word!r}{nearest(str(word), words)}")
    action = words[word]
    readers: dict[str, Reader] = {
        "do": _text,
        "at": _times,
        "every": parse_seconds,
        "count": _whole(1, 10_000),
        "alone": _truth,
        "leaving": _whole(0, 256),
        **_own_keys(action),
    }
    found = _section(data, path, readers, needed=_NEEDED.get(action, ()))
    if ("at" in found) == ("every" in found):
        raise ConfigError(path, "either 'at' or 'every'", "both" if "at" in found else "neither")
    if "every" in found and not found["every"]:
        raise ConfigError(f"{path}.every", "more than 0", "0")
    if found.get("alone") and found.get("leaving"):
        raise ConfigError(f"{path}.leaving", "no 'alone: true' beside it", "both")
    if "count" in found and "at" in found:
        raise ConfigError(f"{path}.count", "'every' beside it", "'at'")
    if action in (Action.SLOW, Action.LATE) and not found["delay"]:
        raise ConfigError(f"{path}.delay", "more than 0", "0")
    if action is Action.LINK and not any(key in found for key in _QUALITY):
        raise ConfigError(path, "one of " + ", ".join(_QUALITY), "none")
    return EventSpec(
        action,
        at_s=found.get("at", ()),
        every_s=found.get("every"),
        count=found.get("count"),
        for_s=found.get("for"),
        worker=found.get("worker", ANY),
        alone=found.get("alone", action in TAKING and "leaving" not in found),
        leaving=found.get("leaving", 0),
        delay_s=found.get("delay", 0.0) if action in WORKER_FAULTS else 0.0,
        probability=found.get("probability", 1.0),
        workers=found.get("workers", 0),
        layer=found.get("layer"),
        expert=found.get("expert"),
        to=found.get("to"),
        link=_quality(found) if action is Action.LINK else None,
    )


#: Keys that an action cannot do without.
_NEEDED: dict[Action, tuple[str, ...]] = {
    Action.STOP: ("for",),
    Action.LINK_DOWN: ("for",),
    Action.LINK: ("for",),
    Action.SLOW: ("for", "delay"),
    Action.LATE: ("for", "delay"),
    Action.SCALE: ("workers",),
    Action.DRAIN: ("for",),
    **dict.fromkeys(WORKER_FAULTS - {Action.SLOW, Action.LATE}, ("for",)),
}


def _own_keys(action: Action) -> dict[str, Reader]:
    """Keys that an action takes beside its time."""
    if action is Action.SCALE:
        return {"workers": _whole(1, 256)}
    if action is Action.MOVE:
        return {"layer": _whole(0, 1 << 20), "expert": _whole(0, 1 << 20), "to": _text}
    keys: dict[str, Reader] = {"worker": _text}
    if action is not Action.KILL:
        keys["for"] = parse_seconds
    if action in WORKER_FAULTS:
        keys["probability"] = parse_share
    if action in (Action.SLOW, Action.LATE):
        keys["delay"] = parse_seconds
    if action is Action.LINK:
        keys |= _QUALITY
    return keys


def _section(
    data: object,
    path: str,
    readers: Mapping[str, Reader],
    names: Mapping[str, str] | None = None,
    needed: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The mapping's values as their readers see them; `names`: keys that are called otherwise in the result."""
    if not isinstance(data, dict):
        raise ConfigError(path, "a mapping", repr(data))
    prefix = "" if path == "plan" else f"{path}."
    for key in data:
        if key not in readers:
            expected = "one of " + ", ".join(readers)
            raise ConfigError(f"{prefix}{key}", expected, f"an unknown key{nearest(str(key), readers)}")
    for key in needed:
        if key not in data:
            raise ConfigError(f"{prefix}{key}", "a value", "none")
    return {(names or {}).get(key, key): readers[key](value, f"{prefix}{key}") for key, value in data.items()}


def _text(data: object, path: str) -> str:
    if not isinstance(data, str) or not data:
        raise ConfigError(path, "text", repr(data))
    return data


def _truth(data: object, path: str) -> bool:
    if not isinstance(data, bool):
        raise ConfigError(path, "true or false", repr(data))
    return data


def _list(data: object, path: str) -> list[object]:
    if not isinstance(data, list):
        raise ConfigError(path, "a list", repr(data))
    return data


def _texts(data: object, path: str) -> tuple[str, ...]:
    return tuple(_text(item, f"{path}[{index}]") for index, item in enumerate(_list(data, path)))


def _times(data: object, path: str) -> tuple[float, ...]:
    values = data if isinstance(data, list) else [data]
    if not values:
        raise ConfigError(path, "a time or several", "none")
    return tuple(sorted(parse_seconds(value, path) for value in values))


def _switch(data: object, path: str) -> bool:
    if not isinstance(data, bool):
        raise ConfigError(path, "true or false", repr(data))
    return data


def _whole(low: int, high: int) -> Reader:
    def read(data: object, path: str) -> int:
        if isinstance(data, bool) or not isinstance(data, int) or not low <= data <= high:
            raise ConfigError(path, f"a whole number from {low} to {high}", repr(data))
        return data

    return read


def _number(low: float, high: float) -> Reader:
    def read(data: object, path: str) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float) or not low <= data <= high:
            raise ConfigError(path, f"a number from {low:g} to {high:g}", repr(data))
        return float(data)

    return read
