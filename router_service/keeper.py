"""Bring one worker into use: connect to it, and probe it while it is ejected."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from functools import partial

from colibri.deadline import Clock
from colibri.errors import ColibriError, WorkerLost
from colibri.router_service.connections import Connect
from colibri.router_service.fleet import Fleet, Job
from colibri.router_service.peer import Peer
from colibri.router_service.probe import PROBE_S, probe
from colibri.wire.limits import FrameLimits

_log = logging.getLogger(__name__)

#: Bound of a handshake with a worker that was connected before; doubled with each failure up to that of a first one.
RECONNECT_S = 1.0
#: Probes in a row that got no answer at all before the connection is given up for a new one.
UNANSWERED_PROBES = 3
#: A probe is near the others' usual latency within so many times of it and so much more, seconds: the prober's own
#: thread may have to wait for its turn.
NEAR_FACTOR, NEAR_EXCESS_S = 3.0, 0.02


class Keeper:
    """Makes keepers. connect_s: bound of the first connection with its handshake, seconds; ids: correlation ids."""

    def __init__(
        self,
        connect: Connect,
        limits: FrameLimits,
        ids: itertools.count[int],
        connect_s: float,
        clock: Clock = time.monotonic,
    ) -> None:
        self._connect = connect
        self._limits = limits
        self._ids = ids
        self._connect_s = connect_s
        self._clock = clock

    def start(self, fleet: Fleet, peer: Peer) -> threading.Thread:
        name = f"colibri-keeper {peer.name}"
        thread = threading.Thread(target=self._run, args=(fleet, peer), name=name, daemon=True)
        thread.start()
        return thread

    def _run(self, fleet: Fleet, peer: Peer) -> None:
        unanswered = 0
        while (job := fleet.next_job(peer)) is not None:
            if job is Job.CONNECT:
                unanswered = 0
                peer.over.wait(peer.retry_s)
                if not peer.over.is_set():
                    self._try_connect(fleet, peer)
                continue
            peer.over.wait(peer.health.probe_wait_s)
            try:
                seconds = self._try_probe(fleet, peer)
            except Exception:
                # The thread must live on: nobody else brings this worker back.
                _log.exception("%s: unexpected error while probing", peer.name)
                seconds = None
            unanswered = 0 if seconds is not None else unanswered + 1
            near = fleet.usual_latency_s(peer) * NEAR_FACTOR + NEAR_EXCESS_S
            fleet.probed(peer, seconds is not None and seconds <= near)
            connection = peer.connection
            if unanswered >= UNANSWERED_PROBES and connection is not None:
                text = f"{peer.name}: {unanswered} probes without an answer"
                connection.fail(WorkerLost(text, peer=peer.name))

    def _try_connect(self, fleet: Fleet, peer: Peer) -> None:
        first = peer.tries == 0
        timeout_s = (
            self._connect_s if first else min(self._connect_s, RECONNECT_S * 2 ** min(peer.failures, 8))
        )
        try:
            connection = self._connect(peer.endpoint, timeout_s, partial(fleet.lost, peer))
        except ColibriError as error:
            fleet.not_connected(peer, error)
        except Exception as error:
            # The thread must live on: nobody else connects to this worker.
            _log.exception("%s: unexpected error while connecting", peer.name)
            fleet.not_connected(peer, WorkerLost(f"{peer.name}: cannot connect: {error}", peer=peer.name))
        else:
            fleet.connected(peer, connection)

    def _try_probe(self, fleet: Fleet, peer: Peer) -> float | None:
        """Seconds until the answer; None: none came. A worker that holds nothing cannot be asked, and does no harm."""
        connection, target = peer.connection, fleet.probe_target(peer)
        if connection is None or peer.over.is_set():
            return None
        if target is None:
            return 0.0
        return probe(connection, self._limits, next(self._ids), *target, PROBE_S, self._clock)
