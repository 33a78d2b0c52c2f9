"""Use workers that somebody else started: find them by address, load their experts, watch them by asking.

They cannot be restarted from here. What can be corrected in place is. A worker that stays wrong leaves the
directory, so that its replicas answer; its state and the reason are shown until it is mended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from colibri.cluster.experts.contents import Contents
from colibri.cluster.workers.expert_calls import (
    WorkerProgress,
    ask_status,
    load_experts,
    serve_epochs,
    told_contents,
)
from colibri.cluster.workers.launch import WorkerState, WorkerStatus
from colibri.cluster.workers.membership import MembershipPublisher
from colibri.cluster.workers.remedies import Remedies, Remedy
from colibri.cluster.workers.worker_process import ANYWHERE
from colibri.cluster.workers.worker_state import Difference, Identities, Wanted, compare
from colibri.deadline import Clock, Deadline
from colibri.errors import Code, ColibriError, InvalidInput, NumericsMismatch, WorkerLost
from colibri.placement import Directory, Placement, WorkerEndpoint
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.v1 import expert_pb2

#: Refusals of a load that asking again does not change: the worker holds another or a damaged model.
_FINAL = (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION)

_SAME_MODEL = "start it on the model that this router serves"
_MIXED = "only with --mixed-numerics of the router do such workers serve together"


@dataclass(frozen=True, slots=True)
class AttachOptions:
    """Times, in seconds.

    answer_timeout_s: a worker that does not answer for this long is taken out until it does.
    poll_s, retry_max_s: a worker that is out is tried again after poll_s, doubled from failure to failure up to
        retry_max_s.
    """

    find_timeout_s: float = 30.0
    load_timeout_s: float = 1800.0
    poll_s: float = 0.5
    answer_timeout_s: float = 2.0
    retry_max_s: float = 2.0


class AttachedWorkers:
    """Finds the worker at each target, asks `place` for a placement over them, loads and publishes. Starts and ends
    nothing.

    A worker that stops answering leaves the directory. When it is back, perhaps as a new incarnation, it is loaded
    again and returns.

    place: gets each worker's expert_numerics_id by its name, in the order of the targets.
    security: of the channels to them.
    identities: asked after `place`: what the workers must be; None: not compared.
    contents: what their experts must be; None: as the first of them says.

    Making it raises DeadlineExpired, TlsError or WorkerLost if nobody answers at a target, InvalidInput if two
    workers have one name.
    """

    def __init__(
        self,
        targets: Sequence[str],
        place: Callable[[Mapping[str, str]], Placement],
        options: AttachOptions | None = None,
        *,
        security: ChannelSecurity = PLAIN,
        contents: Contents | None = None,
        identities: Callable[[], Identities | None] = lambda: None,
        progress: WorkerProgress = lambda worker, done, total, nbytes: None,
        log: Callable[[str], None] = lambda line: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._options = options = options or AttachOptions()
        closing = threading.Event()
        self._closing = closing
        self._clock = clock
        statuses = [_find(target, options.find_timeout_s, security) for target in targets]
        found = [
            WorkerEndpoint(status.worker, status.incarnation, target, security)
            for status, target in zip(statuses, targets, strict=True)
        ]
        names = [endpoint.name for endpoint in found]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidInput("workers", "names that differ", f"{name} at {targets[index]} and before")
        placement = place({status.worker: status.expert_numerics_id for status in statuses})
        self._publisher = MembershipPublisher(placement, contents)
        self._workers = [
            _Attached(endpoint, self._publisher, identities(), options, closing, progress, log, clock)
            for endpoint in found
        ]

    @property
    def directory(self) -> Directory:
        return self._publisher.directory

    def wait_serving(self) -> Directory:
        """Waits until every worker has loaded its experts. Raises ColibriError, naming a worker that has not in time,
        or, at once, one that never will because it has another model.
        """
        bound = Deadline.after(self._options.load_timeout_s, self._clock)
        for worker in self._workers:
            if not worker.loaded.wait(bound.remaining(self._clock)):
                raise ColibriError(
                    f"worker {worker.name} has not loaded its experts in time", peer=worker.name
                )
            if worker.refusal is not None:
                raise worker.refusal
        return self.directory

    def status(self) -> tuple[WorkerStatus, ...]:
        """Returns the status of each worker, in the order of the targets."""
        return tuple(worker.status for worker in self._workers)

    def close(self) -> None:
        """Stops watching; the workers stay as they are."""
        self._closing.set()
        for worker in self._workers:
            worker.join(self._options.answer_timeout_s + self._options.poll_s + 5.0)


class _Attached:
    """One worker, with a thread that asks it. loaded: set once it has served, or never will because of `refusal`."""

    def __init__(
        self,
        endpoint: WorkerEndpoint,
        publisher: MembershipPublisher,
        identities: Identities | None,
        options: AttachOptions,
        closing: threading.Event,
        progress: WorkerProgress,
        log: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self.name = endpoint.name
        self.loaded = threading.Event()
        self.refusal: ColibriError | None = None
        self._endpoint = endpoint
        self._publisher = publisher
        self._identities = identities
        self._options = options
        self._closing = closing
        self._progress = progress
        self._log = log
        self._clock = clock
        self._remedies = Remedies(clock)
        self._serving = False
        self._seen = 0
        self._retry_s = options.poll_s
        self._told = ""
        self._lock = threading.Lock()
        self._status = WorkerStatus(
            self.name,
            WorkerState.LOADING,
            ANYWHERE,
            endpoint.incarnation,
            target=endpoint.target,
            reason="it loads its experts for the first time",
        )
        self._thread = threading.Thread(target=self._watch, name=f"colibri-ask-{self.name}", daemon=True)
        self._thread.start()

    @property
    def status(self) -> WorkerStatus:
        with self._lock:
            return self._status

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _watch(self) -> None:
        while not self._closing.is_set():
            pause_s = self._options.poll_s
            try:
                pause_s = self._look()
            except ColibriError as error:
                self._out(error)
                pause_s = self._wait_after_failure()
            except (
                Exception
            ) as error:  # of ours; the thread must live on: nobody else brings this worker back
                self._out(ColibriError(f"internal error ({error!r})", peer=self.name))
                pause_s = self._wait_after_failure()
            self._closing.wait(pause_s)

    def _look(self) -> float:
        """Asks once, and does what the answer calls for. Returns when to look again. Raises why the worker cannot
        serve.
        """
        wait_s = self._options.poll_s if self._serving and self._seen else 0.0
        said = ask_status(
            self._endpoint.target,
            f"worker {self.name}",
            self._options.answer_timeout_s + wait_s,
            security=self._endpoint.security,
            experts=True,
            seen=self._seen,
            wait_s=wait_s,
        )
        self._seen = said.state
        if self._serving and said.incarnation != self._endpoint.incarnation:
            raise WorkerLost("it was restarted", peer=self.name)
        if self._serving:
            self._publisher.contents.hear(self.name, told_contents(said))
            self._heard(said)
            difference = compare(self._wanted(), said)
            if difference.wrong:
                self._put_right(difference)
            return 0.0 if said.state else self._options.poll_s
        self._endpoint = replace(self._endpoint, incarnation=said.incarnation)
        self._check(compare(self._wanted(), said, held=False))
        self._join(said)
        return 0.0

    def _join(self, said: expert_pb2.StatusReply) -> None:
        """Loads until the worker holds its experts and is in the directory."""
        self._note(state=WorkerState.LOADING, incarnation=said.incarnation)
        epoch, due = self._publisher.due(self.name)
        if said.epoch_min > epoch:
            serve_epochs(self._endpoint, epoch, self._options.answer_timeout_s)
        self._load(tuple(sorted(due)), epoch)
        self._publisher.add(self._endpoint)
        self._serving = True
        self._seen = 0
        self._retry_s = self._options.poll_s
        self._note(state=WorkerState.SERVING, reason="", served_since=self._clock())
        if self._told:
            self._told = ""
            self._log(f"worker {self.name} at {self._endpoint.target} is back")
        self.loaded.set()

    def _put_right(self, difference: Difference) -> None:
        """Corrects the worker's state. Raises if that is useless."""
        self._note(reason=difference.text)
        self._check(difference)
        remedy = self._remedies.next(difference.other)
        if remedy is Remedy.RESTART:
            self._remedies.restarted()
            raise WorkerLost(f"{difference.text}, and nothing puts it right: restart it", peer=self.name)
        if remedy is Remedy.WAIT:
            self._closing.wait(self._options.poll_s)
            return
        epoch = self._wanted().epoch
        try:
            if difference.refuses:
                serve_epochs(self._endpoint, epoch, self._options.answer_timeout_s)
            if difference.missing:
                self._load(difference.missing, epoch)
        except ColibriError as error:
            self._remedies.failed()
            self._log(f"worker {self.name}: {difference.text}; it could not be put right: {error.message}")
            self._closing.wait(self._options.poll_s)
            return
        self._remedies.mended()
        self._publisher.renew(self.name, self._endpoint.incarnation)
        self._note(reason="", mends=self.status.mends + 1, last_mend=difference.text)
        self._log(f"worker {self.name}: {difference.text}: put right")

    def _check(self, difference: Difference) -> None:
        if difference.other:
            advice = _MIXED if "expert_numerics_id" in difference.text else _SAME_MODEL
            raise NumericsMismatch(f"{difference.text}: {advice}", peer=self.name)

    def _load(self, experts: Sequence[tuple[int, int]], epoch: int) -> None:
        load_experts(
            self._endpoint,
            experts,
            epoch,
            Deadline.after(self._options.load_timeout_s, self._clock),
            lambda step: self._progress(self.name, step.experts_done, step.experts_total, step.bytes_done),
            contents=self._publisher.contents,
        )

    def _wanted(self) -> Wanted:
        epoch, experts = self._publisher.due(self.name)
        return Wanted(self.name, self._endpoint.incarnation, experts, epoch, self._identities)

    def _heard(self, said: expert_pb2.StatusReply) -> None:
        self._note(
            pid=said.pid,
            isa=said.isa,
            cpus_allowed=tuple(said.cpus_allowed),
            numa_node=said.numa_node,
            experts=said.experts_loaded,
            weight_bytes=said.weight_bytes,
            oversubscribed=said.oversubscribed,
            crossing=said.crossing,
            bytes_fetched=said.bytes_fetched,
        )

    def _out(self, error: ColibriError) -> None:
        """Takes the worker out, and reports the reason once."""
        if self._serving:
            self._serving = False
            self._publisher.remove(self.name, self._endpoint.incarnation)
            self._note(deaths=self.status.deaths + 1, served_since=0.0)
        self._seen = 0
        self._note(state=WorkerState.WAITING, reason=error.message, last_error=error.message)
        if error.code in _FINAL and not error.retryable and not self.loaded.is_set():
            kind = NumericsMismatch if isinstance(error, NumericsMismatch) else ColibriError
            self.refusal = kind(f"worker {self.name}: {error.message}", peer=self.name)
            self.refusal.code = error.code
            self.loaded.set()  # who waits for it raises the refusal
        elif self._told != error.message:
            self._told = error.message
            self._log(f"worker {self.name} at {self._endpoint.target} is out: {error.message}")

    def _wait_after_failure(self) -> float:
        wait_s = self._retry_s
        self._retry_s = min(2 * self._retry_s, self._options.retry_max_s)
        return wait_s

    def _note(self, **changes: object) -> None:
        with self._lock:
            self._status = replace(self._status, **changes)  # type: ignore[arg-type]


def _find(target: str, timeout_s: float, security: ChannelSecurity) -> expert_pb2.StatusReply:
    return ask_status(target, f"worker at {target}", timeout_s, security=security, wait_for_ready=True)
