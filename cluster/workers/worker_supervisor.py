"""Supervise one worker over all its incarnations: start it, load it, publish it, watch it, restart it when it dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from colibri.cluster.experts.holders import ExpertId, held_by, holders_of, lost_experts
from colibri.cluster.machine.cpu_list import format_cpu_list
from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.workers.answering import watch_answers
from colibri.cluster.workers.expert_calls import (
    STATUS_TIMEOUT_S,
    WorkerProgress,
    ask_status,
    held_experts,
    load_experts,
    told_contents,
)
from colibri.cluster.workers.launch import LOADED, UP, LaunchOptions, WorkerState, WorkerStatus
from colibri.cluster.workers.life import LifeSource, WorkerLife
from colibri.cluster.workers.membership import MembershipPublisher
from colibri.cluster.workers.mending import Mended, Mender
from colibri.cluster.workers.remedies import Remedies
from colibri.cluster.workers.worker_state import Wanted, compare
from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError, DeadlineExpired, NumericsMismatch, WorkerLost
from colibri.placement import WorkerEndpoint
from colibri.v1 import expert_pb2

#: How much longer a start beside requests may take.
_YIELDING_TAKES = 5


@dataclass(frozen=True, slots=True)
class SupervisorContext:
    """What all supervisors of a launcher share. incarnations: each number is given once; reached: hears (milestone,
    worker).
    """

    options: LaunchOptions
    publisher: MembershipPublisher
    incarnations: Iterator[int]
    source: LifeSource
    progress: WorkerProgress
    reached: Callable[[str, str], None]
    log: Callable[[str], None]
    clock: Clock


class WorkerSupervisor:
    """Runs from construction to `stop` on a thread of its own, which is also the parent with which its workers die
    (PR_SET_PDEATHSIG).

    joins: the deployment serves already.
    up: set once the worker has served, or failed to with `failure`.
    """

    def __init__(self, name: str, pin: WorkerPinning, context: SupervisorContext, *, joins: bool) -> None:
        self.name = name
        self.up = threading.Event()
        self.failure: ColibriError | None = None
        self._context = context
        self._joins = joins
        #: Its last start was too slow: the next one yields to nobody.
        self._hurry = False
        self._status = WorkerStatus(name, WorkerState.STARTING, pin)
        self._lock = threading.Lock()
        self._process: WorkerLife | None = None
        self._remedies = Remedies(context.clock)
        self._mended = Mended()
        self._woken = threading.Event()
        #: Least pause before the next life.
        self._out_s = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_running, name=f"colibri-keep-{name}", daemon=True)
        self._thread.start()

    @property
    def status(self) -> WorkerStatus:
        with self._lock:
            return self._status

    def terminate(self) -> None:
        """Asks the present incarnation to end, and begins no other. Returns at once."""
        self._closing.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()

    def leave(self) -> None:
        """Stops a worker that nobody needs any more: tells routers first, which hang up."""
        self._closing.set()
        with self._lock:
            process = self._process
        if process is not None:
            self._context.publisher.remove(self.name, process.incarnation)
        self.stop()

    def stop(self) -> None:
        """Does as `terminate`, and returns when nothing is left of the worker."""
        self.terminate()
        grace_s = self._context.options.stop_grace_s
        with self._lock:
            process = self._process
        if process is not None:
            process.stop(grace_s)
        self._thread.join(grace_s + 15.0)
        self._context.source.forget(self.name)

    def _keep_running(self) -> None:
        try:
            self._live()
        except Exception as error:  # a fault of ours must not leave anybody waiting
            self.failure = ColibriError(
                f"worker {self.name} is not minded any more: {error!r}", peer=self.name
            )
            self._context.log(self.failure.message)
        finally:
            failure = self.failure
            why = "it was ended" if failure is None else failure.message
            self._note(state=WorkerState.STOPPED, reason=why)
            self.up.set()

    def _live(self) -> None:
        options, clock = self._context.options, self._context.clock
        backoff = options.backoff_s
        while not self._closing.is_set():
            served_since, taken_over, self._out_s = None, False, 0.0
            try:
                process = self._spawn()
                if process is None:
                    break
                taken_over = process.taken_over
                endpoint = self._bring_up(process)
                served_since = clock()
                self._hurry = False
                self.up.set()
                killed = watch_answers(
                    process,
                    endpoint.target,
                    options.poll_s,
                    options.hung_after_s,
                    self._minding(endpoint),
                    clock,
                    options.channel,
                    self._woken,
                )
                raise process.lost(f"while it served{'; it ' + killed if killed else ''}")
            except (ColibriError, OSError) as error:
                failure = (
                    error
                    if isinstance(error, ColibriError)
                    else WorkerLost(f"{self.name}: {error}", peer=self.name)
                )
            finally:
                self._end()
            if self._closing.is_set():
                break
            self._hurry = isinstance(failure, DeadlineExpired)
            if not self.up.is_set() and not taken_over:
                self.failure = failure
                break
            if served_since is not None and clock() - served_since >= options.stable_s:
                backoff = options.backoff_s
            pause_s = max(backoff, self._out_s)
            words = failure.message
            if self.name not in words:  # a refused load names the file alone
                words = f"worker {self.name}: {words}"
            told = f"{words}; starting it again in {pause_s:g} s"
            self._note(
                state=WorkerState.WAITING,
                deaths=self.status.deaths + 1,
                last_error=failure.message,
                reason=told,
                served_since=0.0,
            )
            self._context.log(told)
            self._closing.wait(pause_s)
            backoff = min(2 * backoff, options.backoff_max_s)

    def _spawn(self) -> WorkerLife | None:
        """Begins an incarnation; None if the supervisor is closing. Decided under the lock, so that `terminate` sees
        every process.
        """
        incarnation = next(self._context.incarnations)
        yielding = self._may_yield()
        with self._lock:
            if self._closing.is_set():
                return None
            self._process = self._context.source.begin(
                self.name, incarnation, self._status.pin, yielding=yielding, on_exit=self._ended
            )
        before = self.status.last_error
        self._note(
            state=WorkerState.STARTING,
            incarnation=self._process.incarnation,
            pid=self._process.pid,
            target="",
            reason=f"started again after: {before}" if before else "it has just been started",
            surplus=0,
        )
        return self._process

    def _bring_up(self, process: WorkerLife) -> WorkerEndpoint:
        """Brings the worker up. Returns when it is in the directory."""
        options, publisher = self._context.options, self._context.publisher
        ready = process.wait_ready(options.ready_timeout_s * (_YIELDING_TAKES if self._may_yield() else 1))
        self._note(state=WorkerState.LOADING, pid=ready.pid, target=ready.target, pin=process.place)
        self._context.reached(UP, self.name)
        endpoint = WorkerEndpoint(self.name, process.incarnation, ready.target, options.channel)
        peer = f"worker {self.name}"
        deadline = Deadline.after(options.load_timeout_s, self._context.clock)
        try:
            self._check_identity(endpoint, deadline)
            self._load(endpoint, deadline, process.taken_over)
            left_s = deadline.bound(STATUS_TIMEOUT_S, self._context.clock)
            self._heard(ask_status(ready.target, peer, left_s, security=options.channel))
        except WorkerLost:
            if process.wait_exit(1.0):
                raise process.lost("while it loaded") from None  # says more than the broken connection does
            raise
        pin, allowed = self.status.pin, self.status.cpus_allowed
        if allowed != pin.cpus:
            asked, got = format_cpu_list(pin.cpus), format_cpu_list(allowed)
            self._context.log(f"{peer}: asked for CPUs {asked}, the kernel gave {got}")
        if process.ended:  # it died before there was an endpoint to remove
            publisher.remove(self.name, process.incarnation)
        self._note(
            state=WorkerState.SERVING,
            reason="",
            load_done=0,
            load_total=0,
            served_since=self._context.clock(),
        )
        self._context.reached(LOADED, self.name)
        return endpoint

    def _check_identity(self, endpoint: WorkerEndpoint, deadline: Deadline) -> None:
        """Raises NumericsMismatch if the worker would compute other bits, before it loads in vain."""
        peer = f"worker {endpoint.name}"
        left_s = deadline.bound(STATUS_TIMEOUT_S, self._context.clock)
        said = ask_status(endpoint.target, peer, left_s, security=endpoint.security)
        found = compare(self._wanted(endpoint), said, held=False)
        if found.other:
            remedy = "put back the model that the server was started on"
            text = f"{peer} does not fit this deployment: {found.text}: {remedy}"
            raise NumericsMismatch(text, peer=self.name)

    def _wanted(self, endpoint: WorkerEndpoint) -> Wanted:
        epoch, experts = self._context.publisher.due(endpoint.name)
        identities = self._context.options.identities
        return Wanted(endpoint.name, endpoint.incarnation, experts, epoch, identities)

    def _minding(self, endpoint: WorkerEndpoint) -> Callable[[expert_pb2.StatusReply], str]:
        """Returns what to do with each status of a serving worker; that returns the reason to end the worker, or
        nothing.
        """
        context = self._context
        mender = Mender(
            endpoint,
            lambda: self._wanted(endpoint),
            self._remedies,
            lambda: context.publisher.renew(endpoint.name, endpoint.incarnation),
            self._put_right,
            context.publisher.contents,
            context.options.load_timeout_s,
            context.log,
            context.clock,
            self._mended,
        )

        def heard(reply: expert_pb2.StatusReply) -> str:
            self._heard(reply)
            found, against = mender.heard(reply)
            self._note(reason=found.text, surplus=found.surplus)
            if against:
                self._out_s = self._remedies.restarted()
            return against

        return heard

    def _put_right(self, mended: Mended) -> None:
        self._mended = mended
        self._note(mends=mended.times, last_mend=mended.last)

    def _load(self, endpoint: WorkerEndpoint, deadline: Deadline, taken_over: bool) -> None:
        """Loads until the worker holds what the placement gives it, however often that changes meanwhile."""
        loaded: frozenset[ExpertId] = frozenset()
        if taken_over:
            left_s = deadline.bound(STATUS_TIMEOUT_S, self._context.clock)
            loaded = held_experts(endpoint, left_s, self._context.publisher.contents)
        while True:
            epoch, missing = self._context.publisher.join(endpoint, loaded)
            if not missing:
                return
            load_experts(
                endpoint,
                missing,
                epoch,
                deadline,
                self._progress,
                yielding=self._may_yield(),
                contents=self._context.publisher.contents,
            )
            loaded = loaded.union(missing)

    def _progress(self, step: expert_pb2.LoadProgress) -> None:
        self._note(
            load_done=step.experts_done, load_total=step.experts_total, bytes_fetched=step.bytes_fetched
        )
        self._context.progress(self.name, step.experts_done, step.experts_total, step.bytes_done)

    def _may_yield(self) -> bool:
        """Whether it must not disturb other running workers. It may, if nobody holds some of its experts."""
        if self._hurry or (not self._joins and not self.up.is_set()):
            return False
        membership = self._context.publisher.current
        holders = holders_of(membership.placement)
        own = held_by(holders, self.name)
        return bool(membership.endpoints) and own.isdisjoint(
            lost_experts(holders, frozenset(membership.endpoints))
        )

    def _heard(self, reply: expert_pb2.StatusReply) -> None:
        self._context.publisher.contents.hear(self.name, told_contents(reply))
        self._note(
            cpus_allowed=tuple(reply.cpus_allowed),
            oversubscribed=reply.oversubscribed,
            numa_node=reply.numa_node,
            weight_pages=tuple(sorted(reply.weight_pages_by_node.items())),
            crossing=reply.crossing,
            isa=reply.isa,
            experts=reply.experts_loaded,
            weight_bytes=reply.weight_bytes,
            bytes_fetched=reply.bytes_fetched,
        )

    def _ended(self, process: WorkerLife) -> None:
        self._woken.set()
        self._context.publisher.remove(process.name, process.incarnation)

    def _end(self) -> None:
        process = self._process
        if process is None:
            return
        process.stop(self._context.options.stop_grace_s)
        self._context.publisher.remove(self.name, process.incarnation)
        with self._lock:
            self._process = None
        self._context.source.clear(self.name, process.incarnation)

    def _note(self, **changes: object) -> None:
        with self._lock:
            self._status = replace(self._status, **changes)  # type: ignore[arg-type]
