"""What a router may do about workers that fail, hang or are slow."""

from __future__ import annotations

from dataclasses import dataclass

from colibri.errors import ConfigError


@dataclass(frozen=True, slots=True)
class FailoverPolicy:
    """What to do about late, lost and refused messages. Raises ConfigError for a value out of range.

    failover: send the units of a failed message again, to another holder of their experts; off: their rows fail.
    hedge: send a late message also to a second holder; the first valid answer wins.
    hedge_budget: hedges per message sent, 0 to 1.
    hedge_burst: hedges that may be saved up.
    hedge_floor_s: no message counts as late sooner, seconds.
    deadline_floor_s, deadline_ceiling_s: bounds of the time given to an answer, whatever was measured, seconds.
    deadline_cold_s: that time before enough was measured, seconds.
    wait_for_holder_s: how long units wait for a worker that holds their expert when none lives, seconds.
    """

    failover: bool = True
    hedge: bool = True
    hedge_budget: float = 0.05
    hedge_burst: float = 4.0
    hedge_floor_s: float = 0.005
    deadline_floor_s: float = 0.1
    deadline_cold_s: float = 1.0
    deadline_ceiling_s: float = 30.0
    wait_for_holder_s: float = 20.0

    def __post_init__(self) -> None:
        if self.hedge and not self.failover:
            raise ConfigError("hedge", "off without failover", "on")
        if not 0.0 <= self.hedge_budget <= 1.0:
            raise ConfigError("hedge_budget", "hedges per message, 0 to 1", self.hedge_budget)
        if not self.hedge_burst >= 1.0:
            raise ConfigError("hedge_burst", "at least 1", self.hedge_burst)
        for name in ("hedge_floor_s", "deadline_floor_s", "deadline_cold_s", "deadline_ceiling_s"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(name, "seconds above 0", getattr(self, name))
        if not self.wait_for_holder_s >= 0.0:
            raise ConfigError("wait_for_holder_s", "seconds, at least 0", self.wait_for_holder_s)
