"""Publishes who is alive and who holds what: one writer for all watchers, so that no change of another is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from colibri.cluster.experts.contents import Contents
from colibri.cluster.experts.holders import ExpertId, held, held_by, holders_of
from colibri.errors import WorkerLost
from colibri.placement import Directory, Membership, Placement, WorkerEndpoint


class MembershipPublisher:
    """Owns a Directory. Each change replaces the whole snapshot; any thread may call.

    What it publishes is true: a worker is in it only while it holds all that the placement gives it. `contents`: what
    those experts are.
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
        """The epoch in force, and what its placement gives that worker. Reckoned once for each placement."""
        placement = self.current.placement
        due = self._due
        if due is None or due[0] is not placement:
            parts = held(holders_of(placement))
            due = self._due = placement, {worker: frozenset(experts) for worker, experts in parts.items()}
        return placement.epoch, due[1].get(name, frozenset())

    def listen(self, listener: Callable[[], None]) -> None:
        """`listener` is called after each change, on the thread that made it; it must not wait."""
        with self._lock:
            self._listeners.append(listener)

    def add(self, endpoint: WorkerEndpoint) -> None:
        """A worker serves its experts from now on."""
        with self._lock:
            self._endpoints[endpoint.name] = endpoint
            self._publish()

    def join(self, endpoint: WorkerEndpoint, loaded: frozenset[ExpertId]) -> tuple[int, list[ExpertId]]:
        """Adds a worker that has loaded `loaded`, if that is all that the placement of this moment gives it.

        Returns the placement's epoch and, ascending, what is missing: empty when the worker is in.
        """
        with self._lock:
            due = held_by(holders_of(self._placement), endpoint.name)
            missing = sorted(due - loaded)
            if not missing:
                self._endpoints[endpoint.name] = endpoint
                self._publish()
            return self._placement.epoch, missing

    def renew(self, name: str, incarnation: int) -> bool:
        """A life is as it should be again: published anew, so that requests which it refused ask it again. False, and
        no change, where that life is not published."""
        with self._lock:
            present = self._endpoints.get(name)
            if present is None or present.incarnation != incarnation:
                return False
            self._publish()
            return True

    def remove(self, name: str, incarnation: int) -> bool:
        """A life of a worker is over. False, and no change, where that life was not published."""
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
        """Switches to a placement of a later epoch. loaded: the workers that loaded experts for it, with the
        incarnation that did; absent: workers that it makes up for. False, and no change, where one of those is back.

        Raises WorkerLost, and changes nothing, where one of them has died since.
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
