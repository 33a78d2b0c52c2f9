"""The options of a Ray launcher."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path

from colibri.cluster.ray.times import ABSENT_AFTER_S
from colibri.errors import InvalidInput

#: Custom resource of a Ray node: how many workers it takes, one per (NUMA node, GPU).
RESOURCE = "colibri_worker"


class Spread(enum.Enum):
    """HOSTS: each worker of the start on a host of its own. ANY: on as many hosts as have room, several per host."""

    HOSTS = "hosts"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Seating:
    """What each host's plan for its workers is asked for, as on the command line.

    numa_nodes, cpu_threads: one value for all workers of a host, or one for each; None: auto.
    threads: for workers for which cpu_threads says nothing.
    share: they may have the same CPUs.
    """

    numa_nodes: tuple[int | None, ...] = (None,)
    cpu_threads: tuple[int | None, ...] = (None,)
    threads: int | None = None
    share: bool = False


@dataclass(frozen=True, slots=True)
class RayOptions:
    """address: as in ray.init ('auto': the cluster of this host).
    place_s: time until a shortage of places is reported, seconds.
    lease_s: a worker that no coordinator has called for this long ends itself, seconds.
    state: file in which the next coordinator finds the workers; None: it does not.
    absent_after_s: see ManagerOptions.
    hosts: how many hosts the workers of the start must at least be spread over.
    gpus: of each worker.
    """

    address: str = "auto"
    seating: Seating = field(default_factory=Seating)
    spread: Spread = Spread.HOSTS
    hosts: int = 1
    gpus: int = 0
    place_s: float = 120.0
    lease_s: float = 600.0
    state: Path | None = None
    absent_after_s: float = ABSENT_AFTER_S

    def __post_init__(self) -> None:
        if not 0 < self.place_s <= 86400:
            raise InvalidInput("place_s", "above 0, up to 86400", self.place_s)
        if not 1 <= self.lease_s <= 86400:
            raise InvalidInput("lease_s", "1 to 86400", self.lease_s)
