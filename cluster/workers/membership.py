"""Publish who is alive and who holds what. One writer for all watchers, so no change is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from colibri.cluster.experts.contents import Contents
from colibri.cluster.experts.holders import ExpertId, held, held_by, holders_of
from colibri.errors import WorkerLost
from colibri.placement import Directory, Membership, Placement, WorkerEndpoint


class MembershipPublisher:
    """Owns a Directory. Each change replaces the whole snapshot. Any thread may call.

    It publishes only what is true: a worker is in it only while it holds all that the placement gives it.

    contents: the content of the experts.
    """

    def __init__(self, placement: Placement, contents: Contents | None = None) -> None:
        self.contents = Contents() if contents is None else contents
        self._lock = threading.Lock()
        self._placement = placement
        self._endpoints: dict[str, WorkerEndpoint] = {}
        self._due: tuple[Placement, dict[str, frozenset[ExpertId]]] | None = None
        self._listeners: list[Callable[[], None]] = []
        self.directory = Directory(Membership(placement, {}))

    @property
    def current(self) -> Membership:
        return self.directory.current()

    def due(self, name: str) -> tuple[int, frozenset[ExpertId]]:
        """Returns the epoch in force, and the experts that its placement gives the worker. Computed once per
        placement.
        """
        placement = self.current.placement
        due = self._due
        if due is None or due[0] is not placement:
            parts = held(holders_of(placement))
            due = self._due = placement, {worker: frozenset(experts) for worker, experts in parts.items()}
        return placement.epoch, due[1].get(name, frozenset())

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each change, on the thread that made it. It must not wait."""
        with self._lock:
            self._listeners.append(listener)

    def add(self, endpoint: WorkerEndpoint) -> None:
        """Publishes a worker that serves its experts from now on."""
        with self._lock:
            self._endpoints[endpoint.name] = endpoint
            self._publish()

    def join(self, endpoint: WorkerEndpoint, loaded: frozenset[ExpertId]) -> tuple[int, list[ExpertId]]:
        """Adds a worker that has loaded `loaded`, if that is all that the present placement gives it.

        Returns the placement's epoch and, ascending, the missing experts; empty when the worker is in.
        """
        with self._lock:
            due = held_by(holders_of(self._placement), endpoint.name)
            missing = sorted(due - loaded)
            if not missing:
                self._endpoints[endpoint.name] = endpoint
                self._publish()
            return self._placement.epoch, missing

    def renew(self, name: str, incarnation: int) -> bool:
        """Publishes an incarnation anew after its state was corrected, so that requests that it refused ask it again.

        Returns False, and changes nothing, if that incarnation is not published.
        """
        with self._lock:
            present = self._endpoints.get(name)
            if present is None or present.incarnation != incarnation:
                return False
            self._publish()
            return True

    def remove(self, name: str, incarnation: int) -> bool:
        """Removes an incarnation that is over. Returns False, and changes nothing, if it was not published."""
        with self._lock:
            present = self._endpoints.get(name)
            if present is None or present.incarnation != incarnation:
                return False
            del self._endpoints[name]
            self._publish()
            return True

    def commit(
        self, placement: Placement, loaded: Mapping[str, int], absent: frozenset[str] = frozenset()
    ) -> bool:
        """Switches to a placement with a later epoch.

        loaded: workers that loaded experts for it -> the incarnation that did.
        absent: workers that it makes up for.

        Returns False, and changes nothing, if one of `absent` is back. Raises WorkerLost, and changes nothing, if
        one of `loaded` has died since.
        """
        with self._lock:
            if absent.intersection(self._endpoints):
                return False
            for name, incarnation in loaded.items():
                present = self._endpoints.get(name)
                if present is None or present.incarnation != incarnation:
                    raise WorkerLost(f"worker {name} died after it had loaded its experts", peer=name)
            self.directory.publish(Membership(placement, dict(self._endpoints)))
            self._placement = placement
            self._tell()
            return True

    def _publish(self) -> None:
        self.directory.publish(Membership(self._placement, dict(self._endpoints)))
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()
