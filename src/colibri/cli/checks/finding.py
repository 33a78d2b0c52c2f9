"""One thing that was looked at, and the verdict on it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    """WARN: Colibri works, but slower or less safely; FAIL: it will not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """area: chapter; value: what was found; why: what it means, where that is not plain; mend: a command (or
    what to change), empty where nothing needs mending."""

    area: str
    name: str
    verdict: Verdict
    value: str
    why: str = ""
    mend: str = ""


def ok(area: str, name: str, value: str, why: str = "") -> Finding:
    return Finding(area, name, Verdict.OK, value, why)


def warn(area: str, name: str, value: str, why: str, mend: str = "") -> Finding:
    return Finding(area, name, Verdict.WARN, value, why, mend)


def fail(area: str, name: str, value: str, why: str, mend: str = "") -> Finding:
    return Finding(area, name, Verdict.FAIL, value, why, mend)
