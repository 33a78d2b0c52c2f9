"""Reads the desired state at the start of a server, and keeps it up to date while the server runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from colibri.cluster.placing.desired import Desired, in_order
from colibri.cluster.placing.kept.state import Asked, KeptState, as_text, from_text, kept_of
from colibri.cluster.placing.kept.store import DesiredStore
from colibri.cluster.placing.planner.problem import Worker
from colibri.errors import ColibriError, InvalidInput

#: How long a command waits for its outcome to be written.
_WRITTEN_S = 5.0
#: How to be rid of what is kept, in every line that tells of it.
_FORGET = "--fresh forgets it"


def recall(
    store: DesiredStore, asked: Asked, shape: tuple[int, int], fresh: bool, log: Callable[[str], None]
) -> KeptState | None:
    """Reads the state that was kept for a model of shape (layers, experts).

    fresh: set the state aside in any case.
    Returns None where there is none, or none of use; what cannot be used is set aside and told in the log.
    Raises ColibriError where the place cannot be read.
    """
    text = store.load()
    if text is None:
        return None
    if fresh:
        log(f"state: --fresh: what was kept is now {store.set_aside('old')}")
        return None
    try:
        kept = from_text(text)
        if kept.shape != shape:
            raise InvalidInput(
                "holders", f"{shape[0]} layers of {shape[1]} experts", "{} of {}".format(*kept.shape)
            )
    except InvalidInput as error:
        log(
            f"state: {store.where} cannot be used ({error.message}): it is now {store.set_aside('damaged')}, and the "
            "command line alone counts"
        )
        return None
    told = [f"{len(kept.workers)} workers ({', '.join(kept.workers)})"]
    if kept.drained:
        told.append(f"drained {', '.join(kept.drained)}")
    if kept.pinned:
        told.append(f"{len(kept.pinned)} experts moved by hand")
    if kept.loads is not None:
        told.append("a placement by measured loads")
    log(f"state: as it was kept in {store.where}: {'; '.join(told)} ({_FORGET})")
    return kept


def wanted_again(kept: KeptState, asked: Asked, expert_bytes: int, log: Callable[[str], None]) -> Desired:
    """Merges the kept state with the command line, which wins where it has changed since."""
    facts = {name: Worker(name, host) for name, host in kept.drained.items()}
    desired = Desired(
        kept.workers,
        in_order(kept.drained),
        asked.replicas,
        kept.holders,
        kept.pinned,
        kept.loads,
        facts,
        expert_bytes,
    )
    if asked.workers != kept.asked.workers:
        log(f"state: --workers {asked.workers} counts: it was {kept.asked.workers} when the state was kept")
        desired = desired.scale(asked.workers, frozenset())
    if asked.replicas != kept.asked.replicas:
        log(
            f"state: --replicas {asked.replicas} counts: it was {kept.asked.replicas} when the state was kept"
        )
        desired = desired.scale(len(desired.workers), frozenset())
    return desired


class DesiredKeeper:
    """Writes on a thread of its own, the newest state only: a disk that hangs holds up nobody for long.

    `trouble`: why the newest state is not kept, empty: it is. Any thread may read it.
    """

    def __init__(self, store: DesiredStore, asked: Asked, log: Callable[[str], None]) -> None:
        self.trouble = ""
        self._store = store
        self._asked = asked
        self._log = log
        self._changed = threading.Condition()
        self._text: str | None = None
        self._writing = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="colibri-keep-state", daemon=True)
        self._thread.start()

    @property
    def where(self) -> str:
        return self._store.where

    def keep(self, desired: Desired) -> None:
        """Returns once it is written, or after 5 s, or when writing failed; the log tells which."""
        text = as_text(kept_of(desired, self._asked))
        with self._changed:
            self._text = text
            self._changed.notify_all()
            if not self._changed.wait_for(self._idle, _WRITTEN_S):
                self._tell(f"{self._store.where} took no state within {_WRITTEN_S:g} s")

    def close(self) -> None:
        """The newest state is written, or given up after 5 s. May be called twice."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(_WRITTEN_S)

    def _idle(self) -> bool:
        return self._text is None and not self._writing

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._text is not None or self._closing)
                text, self._text = self._text, None
                if text is None:
                    return
                self._writing = True
            trouble = ""
            try:
                self._store.save(text)
            except ColibriError as error:
                trouble = error.message
            except Exception as error:  # of the place; the thread must live on for the next state
                trouble = f"{self._store.where}: {error!r}"
            with self._changed:
                self._writing = False
                self._tell(trouble)
                self._changed.notify_all()

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            self._log(f"state: not kept, so a restart forgets it: {trouble}")
        self.trouble = trouble
