"""Settings: when a placement is planned anew by itself, and which changes are worth it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """trigger: leave a layer as it is if its largest load is at most this many times the mean. move_cost: loading
        every expert once
    must save this share of the time in which a step waits for experts.
    """

    trigger: float = 1.1
    move_cost: float = 0.25


class RebalanceMode(enum.Enum):
    """AUTO: on, unless workers share CPUs: then giving one of them less gains nothing."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class RebalanceOptions:
    """interval_s: between looks, and at least between changes, seconds.
    half_life_s: of what was measured, seconds.
    min_rows: rows of each layer, per worker, before anything is done (a count of n has noise 1 / sqrt(n)).
    min_gain: least share to save of the time in which a step waits for experts.
    """

    mode: RebalanceMode = RebalanceMode.AUTO
    interval_s: float = 60.0
    half_life_s: float = 300.0
    min_rows: int = 1000
    min_gain: float = 0.05
    policy: PlacementPolicy = field(default_factory=PlacementPolicy)
