"""The workers as one router sees them: connections, health, and the routes that follow.

Every change of the directory, of a connection or of a worker's health makes new routes; the hot path only reads the
current ones. Slow work (connecting, probing) runs on threads of its own.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Mapping

from colibri.deadline import Clock
from colibri.errors import ColibriError, FrameError, WorkerLost
from colibri.placement import Directory, Membership
from colibri.router_service.connection import Connection
from colibri.router_service.health import BEATEN, SILENT, SLOW, far_above
from colibri.router_service.latency import quantile
from colibri.router_service.peer import Peer
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.routing import ABSENT, EJECTED, READY, UNCONNECTED, Routes
from colibri.router_service.stats import HealthState, Recorder, RoutingEvents, WorkerHealth

#: A refusal for want of room keeps hedges away for so long, seconds.
_BUSY_S = 1.0
#: Answers since the last comparison that say something about a worker.
_FRESH_ANSWERS = 8


class Job(enum.Enum):
    """What a worker needs before it can be used."""

    CONNECT = enum.auto()
    PROBE = enum.auto()


class Fleet:
    """Thread-safe. `version` grows whenever routes may change; `events` grows with any news for units that wait.

    keep: starts the thread that does a worker's jobs until `next_job` has none.
    """

    def __init__(
        self,
        directory: Directory,
        policy: FailoverPolicy,
        happened: Recorder[RoutingEvents],
        keep: Callable[[Fleet, Peer], threading.Thread],
        clock: Clock = time.monotonic,
    ) -> None:
        self.version = 0
        self.events = 0
        self.closed = False
        self._directory = directory
        self._policy = policy
        self._happened = happened
        self._keep = keep
        self._clock = clock
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._peers: dict[str, Peer] = {}
        self._seen: Membership | None = None
        self._routes: Routes | None = None
        self._hopeless: tuple[Membership, int] | None = None

    # Routes

    def routes(self, membership: Membership) -> Routes:
        """Returns who can be used now, by the worker numbers of `membership`, which may be an old one."""
        routes = self._routes
        if routes is not None and routes.membership is membership and routes.version == self.version:
            return routes
        self.follow()
        with self._lock:
            names = membership.placement.workers
            peers = tuple([self._present(name, membership) for name in names])
            ranks = tuple([_rank(peer) for peer in peers])
            routes = self._routes = Routes(membership, self.version, peers, ranks)
        return routes

    def follow(self) -> None:
        """Follows the directory: closes connections to incarnations that ended, and opens connections to new ones."""
        membership = self._directory.current()
        if membership is self._seen:
            return
        ended = []
        with self._lock:
            if membership is self._seen or self.closed:
                return
            self._seen = membership
            for name, peer in list(self._peers.items()):
                if membership.endpoints.get(name) != peer.endpoint:
                    del self._peers[name]
                    peer.over.set()
                    ended.append(peer)
            for name, endpoint in membership.endpoints.items():
                if name not in self._peers:
                    self._peers[name] = peer = Peer(endpoint, self._policy, self._usual())
                    self._start_keeper(peer)
            self._announce()
        for peer in ended:
            connection = peer.connection
            if connection is not None:
                text = f"{peer.name}: incarnation {peer.endpoint.incarnation} is not alive any more"
                connection.fail(WorkerLost(text, peer=peer.name))

    def wait(self, events: int, timeout_s: float) -> int:
        """Waits until the number of events differs from `events`, at most `timeout_s` seconds. Returns the number."""
        with self._changed:
            self._changed.wait_for(lambda: self.events != events, timeout_s)
            return self.events

    def give_up(self, routes: Routes) -> None:
        """Notes that units waited for a holder in vain. While nothing changes, others need not wait."""
        self._hopeless = (routes.membership, routes.version)

    def is_hopeless(self, routes: Routes) -> bool:
        hopeless = self._hopeless
        return hopeless is not None and hopeless[0] is routes.membership and hopeless[1] == routes.version

    # What happened to a worker

    def connected(self, peer: Peer, connection: Connection) -> None:
        with self._lock:
            wanted = not self.closed and not peer.over.is_set()
            if wanted:
                peer.tries += 1
                # It may have ended before anybody could be told.
                if connection.lost is None:
                    peer.install(connection, self._clock())
                else:
                    peer.lose(connection.lost, self._clock())
                self._announce()
        if not wanted:
            connection.close()

    def not_connected(self, peer: Peer, error: ColibriError) -> None:
        with self._lock:
            peer.tries += 1
            peer.lose(error, self._clock())
            self._tell()

    def lost(self, peer: Peer, connection: Connection, error: ColibriError) -> None:
        """Notes that a connection has ended, for whatever reason."""
        if isinstance(error, FrameError):
            self._happened.add(RoutingEvents(bad_replies=1))
        with self._lock:
            if peer.connection is not connection:
                return
            peer.lose(error, self._clock())
            if isinstance(error, FrameError):
                self._eject(peer, error.message)
            self._announce()
            self._start_keeper(peer)

    def eject(self, peer: Peer, why: str = SILENT) -> None:
        """Ejects a worker that let a deadline pass, or lost one hedge after another."""
        with self._lock:
            if self._eject(peer, why):
                self._announce()
                self._start_keeper(peer)

    def lost_hedge(self, peer: Peer) -> None:
        """Notes that another worker was faster than this one."""
        with self._lock:
            out_of_line = peer.health.lost_hedge()
        if out_of_line:
            self.eject(peer, BEATEN)

    def busy(self, peer: Peer) -> None:
        peer.busy_until = self._clock() + _BUSY_S

    def probed(self, peer: Peer, good: bool) -> None:
        with self._lock:
            if peer.health.probed(good, self._clock()):
                peer.forget_slowness()
                self._announce()

    def compare(self) -> None:
        """Looks for workers far slower than the others, by what was measured since the last look."""
        with self._lock:
            ready = [peer for peer in self._peers.values() if _rank(peer) == READY]
            for peer in ready:
                verdicts = []
                for size, fresh in peer.fresh_sizes(_FRESH_ANSWERS):
                    others = [other.median(size) for other in ready if other is not peer]
                    verdicts.append(far_above(quantile(fresh, 0.5), [value for value in others if value]))
                if verdicts and peer.health.judged(all(verdicts)) and self._eject(peer, SLOW):
                    self._announce()
                    self._start_keeper(peer)

    def check_links(self) -> None:
        """Notices links that ended while nobody used them."""
        for peer in self.present().values():
            connection = peer.connection
            if connection is not None:
                connection.check()

    # For keepers

    def next_job(self, peer: Peer) -> Job | None:
        """Returns what to do for a worker. None: nothing is left to do, and the calling thread must end."""
        with self._lock:
            if not self.closed and not peer.over.is_set():
                if peer.connection is None:
                    if peer.failure is None or peer.failure.retryable:
                        return Job.CONNECT
                elif peer.health.out:
                    return Job.PROBE
            peer.keeper = None
            return None

    def probe_target(self, peer: Peer) -> tuple[int, int, int] | None:
        """Returns (layer, expert, epoch) of an expert that the worker holds now, or None."""
        placement = self._directory.current().placement
        if peer.name not in placement.workers:
            return None
        held = placement.experts_of(placement.workers.index(peer.name))
        return (*held[0], placement.epoch) if held else None

    def usual_latency_s(self, peer: Peer) -> float:
        """Returns the median latency of the other workers' smallest messages, seconds; 0: unknown."""
        with self._lock:
            others = [other for other in self._peers.values() if other is not peer and not other.health.out]
        return quantile([value for other in others if (value := other.smallest_median())], 0.5)

    # For status

    def present(self) -> Mapping[str, Peer]:
        with self._lock:
            return dict(self._peers)

    def conditions(self) -> dict[str, tuple[HealthState, str]]:
        """Returns state and reason of each live worker. Cheaper than `report`."""
        return {name: peer.condition() for name, peer in self.present().items()}

    def report(self) -> dict[str, WorkerHealth]:
        """Describes each worker that is in the placement or alive."""
        peers = self.present()
        why = "it is not among the workers that serve"
        lost = WorkerHealth(HealthState.LOST, 0, "", 0.0, 0.0, 0, why)
        names = dict.fromkeys((*self._directory.current().placement.workers, *peers))
        return {name: peers[name].report() if name in peers else lost for name in names}

    def close(self, timeout_s: float) -> None:
        with self._lock:
            self.closed = True
            peers = list(self._peers.values())
            keepers = [peer.keeper for peer in peers if peer.keeper is not None]
            for peer in peers:
                peer.over.set()
            self._announce()
        for peer in peers:
            connection = peer.connection
            if connection is not None:
                connection.close()
        until = self._clock() + timeout_s
        for keeper in keepers:
            keeper.join(max(0.0, until - self._clock()))

    # Under the lock

    def _usual(self) -> dict[int, float]:
        """Returns by message size the latency of the slowest worker in order: the first estimate for a new worker."""
        usual: dict[int, float] = {}
        for peer in self._peers.values():
            if not peer.health.out:
                for size, seconds in peer.latency.usual().items():
                    usual[size] = max(seconds, usual.get(size, 0.0))
        return usual

    def _present(self, name: str, membership: Membership) -> Peer | None:
        peer, endpoint = self._peers.get(name), membership.endpoints.get(name)
        if peer is None or endpoint is None or peer.endpoint.incarnation != endpoint.incarnation:
            return None
        return peer

    def _eject(self, peer: Peer, why: str) -> bool:
        if self._peers.get(peer.name) is not peer or self._seen is None:
            return False
        placement = self._seen.placement
        if peer.name not in placement.workers:
            return False
        partners = placement.partners(placement.workers.index(peer.name))
        replaceable = any(_rank(self._peers.get(placement.workers[other])) == READY for other in partners)
        newly = peer.health.eject(self._clock(), replaceable, why)
        if newly:
            self._happened.add(RoutingEvents(ejections=1))
        return newly

    def _start_keeper(self, peer: Peer) -> None:
        if peer.keeper is None and not self.closed and not peer.over.is_set():
            peer.keeper = self._keep(self, peer)

    def _announce(self) -> None:
        self.version += 1
        self._tell()

    def _tell(self) -> None:
        self.events += 1
        self._changed.notify_all()


def _rank(peer: Peer | None) -> int:
    if peer is None:
        return ABSENT
    if peer.connection is None:
        return UNCONNECTED
    return EJECTED if peer.health.out else READY
