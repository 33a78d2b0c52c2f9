"""Publishes who is alive: one writer for all watchers of a launcher, so that no change of another is lost."""

from __future__ import annotations

import threading

from colibri.placement import Directory, Membership, Placement, WorkerEndpoint


class MembershipPublisher:
    """Owns a Directory. Each change replaces the whole snapshot; any thread may call."""

    def __init__(self, placement: Placement) -> None:
        self._lock = threading.Lock()
        self._placement = placement
        self._endpoints: dict[str, WorkerEndpoint] = {}
        self.directory = Directory(Membership(placement, {}))

    def add(self, endpoint: WorkerEndpoint) -> None:
        """A worker serves its experts from now on."""
        with self._lock:
            self._endpoints[endpoint.name] = endpoint
            self._publish()

    def remove(self, name: str, incarnation: int) -> bool:
        """A life of a worker is over. False, and no change, where that life was not published."""
        with self._lock:
            present = self._endpoints.get(name)
            if present is None or present.incarnation != incarnation:
                return False
            del self._endpoints[name]
            self._publish()
            return True

    def _publish(self) -> None:
        self.directory.publish(Membership(self._placement, dict(self._endpoints)))
