"""What a chaos run is to do: immutable and checked, without times of day or names of processes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Action(enum.Enum):
    """What an event does; the words of plan files."""

    KILL = "kill"
    STOP = "stop"
    SLOW = "slow"
    LATE = "late"
    CORRUPT = "corrupt"
    TRUNCATE = "truncate"
    DUPLICATE = "duplicate"
    WRONG_SHAPE = "wrong-shape"
    FULL_QUEUE = "full-queue"
    REFUSE_LOAD = "refuse-load"
    SCALE = "scale"
    MOVE = "move"
    DRAIN = "drain"
    LINK_DOWN = "link-down"
    LINK = "link"


#: Faults that the worker itself plays (colibri.v1.Faults).
WORKER_FAULTS = frozenset(
    {
        Action.SLOW,
        Action.LATE,
        Action.CORRUPT,
        Action.TRUNCATE,
        Action.DUPLICATE,
        Action.WRONG_SHAPE,
        Action.FULL_QUEUE,
        Action.REFUSE_LOAD,
    }
)
#: Changes that are asked of the Operator service.
CHANGES = frozenset({Action.SCALE, Action.MOVE, Action.DRAIN})
#: Events that need each worker in a network namespace of its own.
NETWORK = frozenset({Action.LINK_DOWN, Action.LINK})
#: Events that take a worker away: by default they wait until all workers serve.
TAKING = frozenset({Action.KILL, Action.STOP, Action.LINK_DOWN})
ANY = "any"
#: The first moments of a run are no quiet: every user begins at once.
WARM_S = 1.0


@dataclass(frozen=True, slots=True)
class LinkQuality:
    """The quality of one direction of a worker's link.

    delay_s: on top of the machine's own, seconds.
    loss: share of packets.
    rate_bits: per second; None: no limit.
    """

    delay_s: float = 0.0
    loss: float = 0.0
    rate_bits: float | None = None


@dataclass(frozen=True, slots=True)
class EventSpec:
    """One line of a phase. Exactly one of at_s (seconds from the phase's start) and every_s is set.

    for_s: seconds until it is undone.
    worker: a name or ANY.
    alone: wait until all workers serve.
    leaving: wait until this many other workers serve.
    delay_s, probability: for faults.
    workers: for SCALE.
    layer, expert, to: for MOVE; None: drawn.
    link: for LINK.
    """

    action: Action
    at_s: tuple[float, ...] = ()
    every_s: float | None = None
    count: int | None = None
    for_s: float | None = None
    worker: str = ANY
    alone: bool = False
    leaving: int = 0
    delay_s: float = 0.0
    probability: float = 1.0
    workers: int = 0
    layer: int | None = None
    expert: int | None = None
    to: str | None = None
    link: LinkQuality | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    duration_s: float
    events: tuple[EventSpec, ...]


@dataclass(frozen=True, slots=True)
class ServeSpec:
    """The server to start.

    model: a folder, or "demo".
    options: further options of `colibri serve`.
    mtls: server, workers and users speak mutual TLS, with a CA of this run.
    """

    model: str
    workers: int = 4
    replicas: int = 2
    options: tuple[str, ...] = ()
    mtls: bool = False


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """users: each sends one request after another. distinct: number of different requests; then they repeat."""

    users: int = 8
    prompt_tokens: int = 32
    output_tokens: int = 64
    distinct: int = 16
    temperature: float = 0.0
    request_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Puts each worker into a namespace of its own. quality: of each direction of each link."""

    quality: LinkQuality = field(default_factory=LinkQuality)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the verdict allows. None: not judged.

    gap_over_quiet_s: by how much the largest gap between tokens of a request may exceed the quiet phase's p99.
    p99_over_quiet: largest ratio of the two p99s.
    """

    failed: int = 0
    wrong: int = 0
    gap_over_quiet_s: float | None = None
    p99_over_quiet: float | None = None
    events: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A chaos plan. settle_s: how long a deployment may take to be whole again, after an event and at the end."""

    seed: int
    quiet_s: float
    phases: tuple[Phase, ...]
    load: LoadSpec = field(default_factory=LoadSpec)
    serve: ServeSpec | None = None
    network: NetworkSpec | None = None
    limits: Limits = field(default_factory=Limits)
    settle_s: float = 60.0

    def count(self) -> Mapping[Action, int]:
        """Counts the lines of the plan by action."""
        found: dict[Action, int] = {}
        for phase in self.phases:
            for event in phase.events:
                found[event.action] = found.get(event.action, 0) + 1
        return found
