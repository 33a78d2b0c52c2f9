"""One life of a worker on a host that Ray chose, as seen from the coordinator."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from colibri.cluster.child import ANYWHERE, Ready
from colibri.cluster.life import WorkerLife
from colibri.cluster.pinning_plan import WorkerPlace
from colibri.cluster.ray.actor import Begun, Ended
from colibri.cluster.ray.session import Host, api
from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError, DeadlineExpired, WorkerLost
from colibri.security.plane_secret import PlaneSecret

#: From a place to an actor that answers: Ray starts a process and imports Colibri there.
ACTOR_S = 60.0
#: An actor that does not answer for so long is given up: its host is dead or cut off.
_SILENT_S = 5.0
_AGAIN_S = 0.1
_LOOK_S = 1.0


class ActorSource(Protocol):
    """Who has the actors (colibri.cluster.ray.launcher.Actors)."""

    @property
    def secret(self) -> PlaneSecret | None:
        """Of the deployment: what each worker is handed."""
        ...

    def handle(self, name: str, cancelled: Callable[[], bool]) -> Any:
        """Of the worker's actor, made if there is none. None: cancelled. Raises ColibriError without a place."""
        ...

    def shortage(self, name: str) -> ColibriError: ...

    def dead(self, name: str) -> None:
        """Ray will not restart it: the next life needs another one."""
        ...

    def spent(self, name: str) -> None:
        """Its worker has ended: Ray is to restart it."""
        ...


class RayLife:
    """Runs on a thread of its own, from construction to `ended`. on_exit: called once, on that thread."""

    def __init__(
        self,
        name: str,
        incarnation: int,
        actors: ActorSource,
        *,
        yielding: bool,
        ready_s: float,
        place_s: float,
        on_exit: Callable[[WorkerLife], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.place: WorkerPlace = ANYWHERE
        self._actors = actors
        self._yielding = yielding
        self._ready_s = ready_s
        self._place_s = place_s
        self._on_exit = on_exit
        self._clock = clock
        self._changed = threading.Condition()
        self._host: Host | None = None
        self._begun = False
        self._ready: Ready | None = None
        self._failure: ColibriError | None = None
        self._end: Ended | None = None
        self._cancelled = threading.Event()
        self._kill_by: float | None = None
        self._actor: Any = None
        self._thread = threading.Thread(target=self._run, name=f"colibri-ray-{name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return 0 if self._ready is None else self._ready.pid

    @property
    def ended(self) -> bool:
        return self._end is not None

    def wait_ready(self, timeout_s: float) -> Ready:
        with self._changed:
            self._changed.wait_for(lambda: self._begun or self.ended, self._place_s + ACTOR_S + _SILENT_S)
            self._changed.wait_for(lambda: self._ready is not None or self.ended, timeout_s)
            if self._failure is not None:
                raise self._failure
            if self.ended:
                raise self.lost("before it was ready")
            if self._ready is None:
                raise DeadlineExpired(f"{self._who()} was not ready within {timeout_s:g} s", peer=self.name)
            return self._ready

    def wait_exit(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.ended, timeout_s)

    def terminate(self) -> None:
        self._cancelled.set()
        self._tell(force=False)

    def kill(self) -> None:
        self._cancelled.set()
        self._kill_by = self._clock() + _SILENT_S
        self._tell(force=True)

    def stop(self, grace_s: float) -> None:
        self.terminate()
        if not self.wait_exit(grace_s):
            self.kill()
            self.wait_exit(2 * _SILENT_S)
        if threading.current_thread() is not self._thread:
            self._thread.join(_SILENT_S)

    def lost(self, when: str) -> WorkerLost:
        end = self._end or Ended("still runs", "")
        said = f"; it said: {end.said}" if end.said else ""
        return WorkerLost(f"{self._who()} {end.how} {when}{said}", peer=self.name)

    def _who(self) -> str:
        where = "" if self._host is None else f" on {self._host}"
        return f"worker {self.name}{where}" + (f" (pid {self.pid})" if self.pid else "")

    # Its own thread

    def _run(self) -> None:
        try:
            end = self._live()
        except ColibriError as error:
            self._failure, end = error, Ended("did not start", error.message)
        except Exception as error:  # whatever Ray may raise must not leave anybody waiting
            end = Ended(f"was lost to Ray ({type(error).__name__})", "")
        if self._begun:
            self._actors.spent(self.name)
        with self._changed:
            self._end = end
            self._changed.notify_all()
        try:
            self._on_exit(self)
        finally:
            with self._changed:
                self._changed.notify_all()

    def _live(self) -> Ended:
        if not self._find_actor():
            return Ended("was called off", "")
        actor = self._actor
        self._note_begun()
        begun = self._get(
            actor.begin.remote(self.incarnation, self._yielding, self._ready_s, self._actors.secret),
            self._ready_s + _SILENT_S,
        )
        if not isinstance(begun, Begun) or begun.ready is None:
            error = begun.error if isinstance(begun, Begun) else ""
            raise WorkerLost(error or f"{self._who()} was called off", peer=self.name)
        with self._changed:
            self._ready = begun.ready
            self.place = begun.place or ANYWHERE
            self._changed.notify_all()
        end = self._get(actor.wait_end.remote(), None)
        return end if isinstance(end, Ended) else Ended("does not answer", "")

    def _find_actor(self) -> bool:
        """An instance that has not had its worker yet. False: called off."""
        ray = api()
        actor = self._actors.handle(self.name, self._cancelled.is_set)
        deadline = Deadline.after(self._place_s + ACTOR_S, self._clock)
        while actor is not None and not self._cancelled.is_set():
            if deadline.expired(self._clock):
                raise self._actors.shortage(self.name)
            try:
                look = self._get(actor.look.remote(), deadline.remaining(self._clock))
            except ray.exceptions.ActorDiedError as error:
                self._actors.dead(self.name)
                raise WorkerLost(f"{self._who()}: {_plain(error)}", peer=self.name) from error
            except ray.exceptions.RayError:
                look = None  # it is being restarted
            if look is not None:
                spent, self._host, self.place = look
                if not spent:
                    self._actor = actor
                    return True
            self._cancelled.wait(_AGAIN_S)
        return False

    def _note_begun(self) -> None:
        with self._changed:
            self._begun = True
            self._changed.notify_all()

    def _get(self, ref: Any, timeout_s: float | None) -> Any:
        """The answer; None when there is none in time, or none to a worker that is to be killed. Raises what Ray
        does."""
        ray = api()
        deadline = Deadline.after(timeout_s, self._clock)
        while True:
            done, _ = ray.wait([ref], timeout=deadline.bound(_LOOK_S, self._clock))
            if done:
                return ray.get(ref)
            given_up = self._kill_by is not None and self._clock() >= self._kill_by
            if deadline.expired(self._clock) or given_up or (not self._begun and self._cancelled.is_set()):
                return None

    def _tell(self, *, force: bool) -> None:
        actor = self._actor
        if actor is not None and not self.ended:
            with contextlib.suppress(Exception):  # a dead actor ends this life without being told
                actor.end.remote(force)


def _plain(error: BaseException) -> str:
    """One line of what Ray says in many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
