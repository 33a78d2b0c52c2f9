"""Decide when to plan anew: enough was measured, it is worth it, and nothing else is in progress.

Loads are counts of rows, halved with age, so plans follow recent requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.placing.desired import Desired
from colibri.cluster.placing.planner.problem import Loads
from colibri.cluster.placing.proposal import Proposal, propose
from colibri.cluster.placing.rebalance_options import RebalanceMode, RebalanceOptions
from colibri.deadline import Clock
from colibri.errors import ColibriError, InvalidInput
from colibri.placement import Placement

#: Rows that each expert was chosen for since the start: [layers, experts].
Counts = Callable[[], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class RebalanceView:
    """The rebalancer's state, for status. active: whether it acts by itself; changes: so far; last: what the last look
    found.
    """

    mode: str
    active: bool
    changes: int
    last: str


class Rebalancer:
    """Used by one thread, except for `measured` and `view`."""

    def __init__(self, counts: Counts, options: RebalanceOptions, clock: Clock) -> None:
        self.options = options
        self._counts = counts
        self._clock = clock
        self._looked_at = clock()
        self._seen = counts().astype(np.float64)
        self._aged = np.zeros_like(self._seen)
        self._changes = 0
        self._last = ""
        self._active = False

    def measured(self) -> Loads:
        """Returns rows by layer and expert; older ones count less. Raises InvalidInput before any."""
        loads = self._decayed()
        if not loads.any():
            raise InvalidInput("loads", "measured loads: some requests first", "none yet")
        return tuple(tuple(row) for row in loads.tolist())

    def view(self) -> RebalanceView:
        return RebalanceView(self.options.mode.value, self._active, self._changes, self._last)

    def due(self, places: Iterable[WorkerPinning]) -> bool:
        mode = self.options.mode
        shared = any(place.oversubscribed for place in places)
        self._active = mode is RebalanceMode.ON or (mode is RebalanceMode.AUTO and not shared)
        return self._active and self._clock() - self._looked_at >= self.options.interval_s

    def look(self, desired: Desired, current: Placement) -> Proposal | None:
        """Returns what is worth doing now, if anything. All workers of `desired` must live."""
        options, now = self.options, self._clock()
        loads = self._decayed()
        self._aged, self._seen, self._looked_at = loads, self._counts().astype(np.float64), now
        rows, needed = loads.sum(axis=1).min(), options.min_rows * len(desired.workers)
        if rows < needed:
            self._last = f"too little was measured: {rows:.0f} of {needed} rows of a layer"
            return None
        try:
            proposal = propose(desired, current, self.measured(), options.policy)
        except ColibriError as error:
            self._last = f"no plan: {error.message}"
            return None
        found = (
            f"slowest worker over mean {proposal.before.slowdown:.2f}, {proposal.after.slowdown:.2f} with "
            f"{len(proposal.loads)} copies"
        )
        worth = proposal.gain >= options.min_gain or desired.crowded
        self._last = found if worth else f"left as it is: {found}"
        return proposal if worth else None

    def changed(self) -> None:
        self._changes += 1

    def _decayed(self) -> NDArray[np.float64]:
        age = self._clock() - self._looked_at
        kept: NDArray[np.float64] = self._aged * 0.5 ** (age / self.options.half_life_s)
        return kept + self._counts() - self._seen
