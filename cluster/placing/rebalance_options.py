"""When a placement is planned anew by itself, and what is worth it: settings alone."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PlacePolicy:
    """trigger: a layer whose largest load is at most so many times the mean is left as it is; move_cost: loading every
    expert once must be worth so much of the time that a step waits for experts."""

    trigger: float = 1.1
    move_cost: float = 0.25


class RebalanceMode(enum.Enum):
    """AUTO: unless workers share CPUs, which makes it pointless to give one of them less."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """interval_s: between looks, and at least between changes; half_life_s: of what was measured; min_rows: of each
    layer, per worker, before anything is done (the noise of a count of n rows is 1 / sqrt(n)); min_gain: of the time
    that a step waits for experts, below which nothing is done."""

    mode: RebalanceMode = RebalanceMode.AUTO
    interval_s: float = 60.0
    half_life_s: float = 300.0
    min_rows: int = 1000
    min_gain: float = 0.05
    policy: PlacePolicy = field(default_factory=PlacePolicy)
