"""Decide with which workers and which placement a deployment starts: as the command line asks, or as it was left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from colibri.cluster.experts.holders import as_placement
from colibri.cluster.placing.desired import Desired
from colibri.cluster.placing.kept.keeping import DesiredKeeper, recall, wanted_again
from colibri.cluster.placing.kept.state import Asked
from colibri.cluster.placing.kept.store import DesiredStore
from colibri.deployment.state import StateOptions
from colibri.numerics_homes import OPTION
from colibri.placement import Placement


@dataclass(frozen=True, slots=True)
class Start:
    """names: of the workers that start. desired: as it was left; None: as the command line says. store: None: nothing
    is kept.
    """

    names: tuple[str, ...]
    asked: Asked
    desired: Desired | None = None
    store: DesiredStore | None = None

    @property
    def placement(self) -> Placement | None:
        """The placement to start with; None: make a new one."""
        desired = self.desired
        if desired is None:
            return None
        speeds = None if desired.loads is None else desired.speeds(self.names)
        return as_placement(desired.holders, self.names, 1, desired.loads, speeds)

    def keeper(self, log: Callable[[str], None]) -> DesiredKeeper | None:
        return None if self.store is None else DesiredKeeper(self.store, self.asked, log)


def start_of(
    state: StateOptions,
    workers: int,
    replicas: int,
    shape: tuple[int, int],
    expert_bytes: int,
    mixed: bool,
    log: Callable[[str], None],
) -> Start:
    """Returns the start. Raises ColibriError if the kept state cannot be read.

    workers, replicas: as the command line asks.
    shape: the model's (layers, experts).
    """
    asked = Asked(workers, replicas)
    names = tuple(f"w{index}" for index in range(workers))
    store = state.store if workers else None
    if store is not None and mixed:
        log(
            f"state: nothing is kept with {OPTION}: which worker is of which kind must not follow from an earlier life"
        )
        store = None
    kept = None if store is None else recall(store, asked, shape, state.fresh, log)
    if kept is None:
        return Start(names, asked, store=store)
    desired = wanted_again(kept, asked, expert_bytes, log)
    return Start(desired.workers, asked, desired, store)
