"""Rules for taking a worker out of use and back. No threads, no clocks.

HEALTHY -> SUSPECT -> EJECTED: it is far slower than the others, round after round.
any -> EJECTED: it lets a deadline pass, answers nonsense, or loses hedge after hedge.
EJECTED -> PROBING: its first good answer to a probe.
PROBING -> HEALTHY: the last of several good answers in a row.

A worker that no other could stand in for becomes SUSPECT instead of EJECTED, and stays in use.
"""

from __future__ import annotations

from collections.abc import Sequence

from colibri.router_service.latency import quantile
from colibri.router_service.stats import HealthState

#: Reasons.
SLOW = "far slower than the other workers"
SILENT = "it let a deadline pass in silence"
BEATEN = "others answered sooner, time after time"
#: Hedges lost in a row that eject.
LOST_HEDGES = 3
#: Rounds of being slow in a row that eject.
SLOW_ROUNDS = 3
#: Good probes in a row that readmit; doubled, up to so many, for a worker that was ejected soon after the last time.
GOOD_PROBES, MOST_GOOD_PROBES = 3, 24
SOON_S = 10.0
#: Seconds between probes of a worker that does not answer well: the first wait, and the longest.
PROBE_WAIT_S, LONGEST_PROBE_WAIT_S = 0.1, 2.0
#: Slow: so many times the others' median, and at least so much above it, seconds.
SLOW_FACTOR, SLOW_EXCESS_S = 4.0, 0.005


def far_above(own_s: float, others_s: Sequence[float]) -> bool:
    """Whether a median latency is far above those of the others, in seconds. False if there are no others."""
    if not others_s:
        return False
    usual = quantile(others_s, 0.5)
    return own_s > usual * SLOW_FACTOR and own_s > usual + SLOW_EXCESS_S


class Health:
    """The health of one incarnation of a worker. `now`: seconds of a monotonic clock. Not thread-safe."""

    def __init__(self) -> None:
        self.state = HealthState.HEALTHY
        #: Why it was taken out, or would have been; of no meaning while it is healthy.
        self.reason = ""
        self.probe_wait_s = PROBE_WAIT_S
        #: In a row; any answer ends the row.
        self.lost_hedges = 0
        self._slow_rounds = 0
        self._good_probes = 0
        self._needed = GOOD_PROBES
        self._readmitted_at: float | None = None

    @property
    def out(self) -> bool:
        """Whether it must not be used while another holder can be."""
        return self.state in (HealthState.EJECTED, HealthState.PROBING)

    def eject(self, now: float, replaceable: bool, why: str = "") -> bool:
        """Takes it out of use if another worker can stand in. Returns whether it was in use."""
        self.reason = why
        self.lost_hedges = self._slow_rounds = 0
        if self.out:
            self.state = HealthState.EJECTED
            self._good_probes = 0
            return False
        if not replaceable:
            self.state = HealthState.SUSPECT
            self.reason = f"{why}; nobody else holds its experts" if why else ""
            return False
        soon = self._readmitted_at is not None and now - self._readmitted_at < SOON_S
        self._needed = min(2 * self._needed, MOST_GOOD_PROBES) if soon else GOOD_PROBES
        self._good_probes = 0
        self.probe_wait_s = PROBE_WAIT_S
        self.state = HealthState.EJECTED
        return True

    def lost_hedge(self) -> bool:
        """Notes that another worker was faster. Returns whether to eject."""
        self.lost_hedges += 1
        return self.lost_hedges >= LOST_HEDGES

    def judged(self, slow: bool) -> bool:
        """Notes the outcome of one comparison with the other workers. Returns whether to eject."""
        if self.out:
            return False
        if slow:
            self._slow_rounds += 1
            self.state = HealthState.SUSPECT
            self.reason = SLOW
        elif self._slow_rounds:
            self._slow_rounds -= 1
        elif self.state is HealthState.SUSPECT:
            self.state = HealthState.HEALTHY
        return self._slow_rounds >= SLOW_ROUNDS

    def probed(self, good: bool, now: float) -> bool:
        """Notes the outcome of one probe. Returns whether the worker is back in use."""
        if not self.out:
            return False
        if not good:
            self.state = HealthState.EJECTED
            self._good_probes = 0
            self.probe_wait_s = min(2 * self.probe_wait_s, LONGEST_PROBE_WAIT_S)
            return False
        self.probe_wait_s = PROBE_WAIT_S
        self.state = HealthState.PROBING
        self._good_probes += 1
        if self._good_probes < self._needed:
            return False
        self.state = HealthState.HEALTHY
        self._readmitted_at = now
        return True
