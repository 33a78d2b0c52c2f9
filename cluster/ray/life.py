"""One incarnation of a worker on a host that Ray chose, as the coordinator sees it.

It is watched in two ways: through its actor, which reports its end and the cause at once, and, while there is no
actor, by asking the worker itself. The worker goes on when an actor, a raylet or Ray is away: a new actor on the
same host takes it over.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.ray.actor import Begun, Ended
from colibri.cluster.ray.bridge import RayAway
from colibri.cluster.ray.driver import ACTOR_S, SILENT_S
from colibri.cluster.ray.record import WorkerRecord
from colibri.cluster.workers.expert_calls import ask_status, end_worker
from colibri.cluster.workers.life import WorkerLife
from colibri.cluster.workers.worker_process import ANYWHERE, START_ADVICE, Ready
from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError, DeadlineExpired, WorkerLost
from colibri.placement import WorkerEndpoint
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.security.plane_secret import PlaneSecret

#: Between two looks at a worker without an actor; refused so often, it is gone.
_LOOK_S, _REFUSALS = 0.5, 3
_ASK_S = 2.0
_AGAIN_S, _MAX_AGAIN_S = 0.5, 5.0


class RayCalls(Protocol):
    """Reaches the actors, and writes down what runs (colibri.cluster.ray.launcher.Actors)."""

    @property
    def secret(self) -> PlaneSecret | None:
        """The deployment's secret, which each worker is handed."""
        ...

    def call(
        self,
        method: str,
        *arguments: object,
        timeout_s: float | None,
        off: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Raises RayAway if Ray or the actor is gone for now, and the typed error of the call."""
        ...

    def runs(self, record: WorkerRecord) -> None: ...

    def log(self, line: str) -> None: ...


class RayLife:
    """Runs on a thread of its own, from construction to `ended`.

    on_exit: called once, on that thread.
    known: it runs already, and is taken over.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        actors: RayCalls,
        *,
        yielding: bool,
        ready_s: float,
        place_s: float,
        on_exit: Callable[[WorkerLife], None],
        known: WorkerRecord | None = None,
        channel: ChannelSecurity = PLAIN,
        clock: Clock = time.monotonic,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.place: WorkerPinning = ANYWHERE if known is None else known.place
        self.taken_over = known is not None
        self._actors = actors
        self._yielding = yielding
        self._ready_s = ready_s
        self._place_s = place_s
        self._on_exit = on_exit
        self._channel = channel
        self._clock = clock
        self._changed = threading.Condition()
        self._record = known
        self._begun = known is not None
        self._failure: ColibriError | None = None
        self._end: Ended | None = None
        self._cancelled = threading.Event()
        self._kill_by: float | None = None
        self._linked = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"colibri-ray-{name}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return 0 if self._record is None else self._record.ready.pid

    @property
    def ended(self) -> bool:
        return self._end is not None

    def wait_ready(self, timeout_s: float) -> Ready:
        with self._changed:
            self._changed.wait_for(lambda: self._begun or self.ended, self._place_s + ACTOR_S + SILENT_S)
            self._changed.wait_for(lambda: self._record is not None or self.ended, timeout_s)
            if self._failure is not None:
                raise self._failure
            if self.ended:
                raise self.lost("before it was ready")
            if self._record is None:
                raise DeadlineExpired(
                    f"{self._who()} was not ready within {timeout_s:g} s; {START_ADVICE}", peer=self.name
                )
            return self._record.ready

    def wait_exit(self, timeout_s: float | None = None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.ended, timeout_s)

    def terminate(self) -> None:
        self._cancelled.set()
        self._tell(force=False)

    def kill(self) -> None:
        self._cancelled.set()
        self._kill_by = self._clock() + SILENT_S
        self._tell(force=True)

    def stop(self, grace_s: float) -> None:
        self.terminate()
        if not self.wait_exit(grace_s):
            self.kill()
            self.wait_exit(2 * SILENT_S)
        if threading.current_thread() is not self._thread:
            self._thread.join(SILENT_S)

    def lost(self, when: str) -> WorkerLost:
        end = self._end or Ended("still runs", "")
        said = f"; it said: {end.said}" if end.said else ""
        return WorkerLost(f"{self._who()} {end.how} {when}{said}", peer=self.name)

    def _who(self) -> str:
        where = "" if self._record is None else f" on {self._record.host} (pid {self.pid})"
        return f"worker {self.name}{where}"

    # Its own thread

    def _run(self) -> None:
        try:
            end = self._live()
        except ColibriError as error:
            self._failure, end = error, Ended("did not start", error.message)
        except Exception as error:  # whatever may be raised must not leave anybody waiting
            end = Ended(f"was lost ({error!r})", "")
        with self._changed:
            self._end = end
            self._changed.notify_all()
        try:
            self._on_exit(self)
        finally:
            with self._changed:
                self._changed.notify_all()

    def _live(self) -> Ended:
        record = self._record or self._begin()
        if self.taken_over:
            self._seek(record)
        else:
            self._linked.set()
        while True:
            if self._linked.is_set():
                try:
                    ended: Ended = self._actors.call(
                        "wait_end", self.name, timeout_s=None, off=self._given_up
                    )
                    return ended
                except RayAway as error:
                    self._linked.clear()
                    self._actors.log(f"{self._who()} has no actor ({error.message}); it serves on")
                    self._seek(record)
                except WorkerLost:  # given up
                    return Ended("does not answer", "")
            end = self._watch(record)
            if end is not None:
                return end

    def _begin(self) -> WorkerRecord:
        """Starts the worker where Ray puts it. Raises ColibriError without a place, and what the start failed with."""
        deadline = Deadline.after(self._place_s + ACTOR_S, self._clock)
        while True:
            try:
                self._actors.call(
                    "find", self.name, "", timeout_s=self._place_s + 2 * ACTOR_S, off=self._cancelled.is_set
                )
                break
            except RayAway as error:
                if self._cancelled.wait(_LOOK_S) or deadline.expired(self._clock):
                    raise DeadlineExpired(f"no place for {self.name}: {error.message}", peer="ray") from error
        with self._changed:
            self._begun = True
            self._changed.notify_all()
        bound = self._ready_s + ACTOR_S
        try:
            begun: Begun = self._actors.call(
                "begin",
                self.name,
                self.incarnation,
                self._yielding,
                self._ready_s,
                self._actors.secret,
                timeout_s=bound,
                off=self._given_up,
            )
        except RayAway as error:
            raise WorkerLost(f"{self._who()}: {error.message}", peer=self.name) from error
        if begun.record is None:
            raise WorkerLost(begun.error, peer=self.name)
        with self._changed:
            self._record = begun.record
            self.place = begun.record.place
            self._changed.notify_all()
        self._actors.runs(begun.record)
        if self._cancelled.is_set():
            self._tell(force=False)
        return begun.record

    def _watch(self, record: WorkerRecord) -> Ended | None:
        """Waits until the worker has an actor again (returns None) or has ended."""
        refused = 0
        while not self._linked.wait(_LOOK_S):
            if self._given_up():
                return Ended("does not answer", "")
            answer = self._answers(record)
            refused = 0 if answer is not False else refused + 1
            if refused >= _REFUSALS:
                return Ended("has ended, unseen since it had no actor,", "")
        return None

    def _answers(self, record: WorkerRecord) -> bool | None:
        """Asks the worker. False: nobody is there, or another incarnation. None: no answer, which the supervisor
        counts.
        """
        try:
            reply = ask_status(record.ready.target, f"worker {self.name}", _ASK_S, security=self._channel)
        except DeadlineExpired:
            return None
        except ColibriError:
            return False
        return bool(reply.incarnation == self.incarnation)

    def _given_up(self) -> bool:
        return self._kill_by is not None and self._clock() >= self._kill_by

    # Another thread

    def _seek(self, record: WorkerRecord) -> None:
        threading.Thread(
            target=self._link, args=(record,), name=f"colibri-seek-{self.name}", daemon=True
        ).start()

    def _link(self, record: WorkerRecord) -> None:
        """Waits until an actor on the worker's host has taken it over, or it has ended."""
        pause_s = _AGAIN_S
        while not self.ended:
            try:
                address = record.host.address
                self._actors.call("find", self.name, address, timeout_s=2 * ACTOR_S, off=lambda: self.ended)
                begun: Begun = self._actors.call("adopt", self.name, self.incarnation, timeout_s=2 * SILENT_S)
            except ColibriError:
                pass
            else:
                if begun.record is not None:
                    self._actors.log(f"{self._who()} is taken over by a new actor")
                    self._linked.set()
                    return
            self.wait_exit(pause_s)
            pause_s = min(2 * pause_s, _MAX_AGAIN_S)

    def _tell(self, *, force: bool) -> None:
        if not self.ended and self._begun:
            threading.Thread(
                target=self._tell_now, args=(force,), name=f"colibri-tell-{self.name}", daemon=True
            ).start()

    def _tell_now(self, force: bool) -> None:
        if self._linked.is_set():
            try:
                self._actors.call("end", self.name, force, timeout_s=_ASK_S)
                return
            except ColibriError:
                pass  # then without an actor
        if self._record is not None:
            endpoint = WorkerEndpoint(self.name, self.incarnation, self._record.ready.target, self._channel)
            with contextlib.suppress(ColibriError):  # it has ended, or hangs: then its lease will end
                end_worker(endpoint, _ASK_S, at_once=force)
