"""Workers that somebody else started: given by address, loaded with their experts, watched by asking them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from colibri.cluster.contents import Contents
from colibri.cluster.expert_calls import WorkerProgress, ask_status, load_experts
from colibri.cluster.membership import MembershipPublisher
from colibri.deadline import Clock, Deadline
from colibri.errors import Code, ColibriError, InvalidInput
from colibri.placement import Directory, Placement, WorkerEndpoint
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.v1 import expert_pb2

#: Refusals of a load that asking again does not change: the worker holds another or a damaged model.
_FINAL = (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION)


@dataclass(frozen=True, slots=True)
class AttachOptions:
    """Seconds. A worker that does not answer for `answer_timeout_s` is taken out until it does again."""

    find_timeout_s: float = 30.0
    load_timeout_s: float = 1800.0
    poll_s: float = 0.5
    answer_timeout_s: float = 2.0


class AttachedWorkers:
    """Finds the worker at each target, asks `place` for a placement over them, loads and publishes. place: gets the
    expert_numerics_id of each by its name, in the order of the targets.

    security: of the channels to them. contents: what their experts must be (None: as the first of them says). A worker
    that stops answering leaves the directory; when it is back, perhaps as a new incarnation, it is loaded again and
    returns. Nothing is started or ended here. Constructing raises DeadlineExpired, TlsError or WorkerLost where nobody
    answers at a target, InvalidInput where two workers have one name.
    """

    def __init__(
        self,
        targets: Sequence[str],
        place: Callable[[Mapping[str, str]], Placement],
        options: AttachOptions | None = None,
        *,
        security: ChannelSecurity = PLAIN,
        contents: Contents | None = None,
        progress: WorkerProgress = lambda worker, done, total, nbytes: None,
        log: Callable[[str], None] = lambda line: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._options = options or AttachOptions()
        self._security = security
        self._progress = progress
        self._log = log
        self._clock = clock
        self._closing = threading.Event()
        statuses = [self._find(target) for target in targets]
        found = [
            WorkerEndpoint(status.worker, status.incarnation, target, security)
            for status, target in zip(statuses, targets, strict=True)
        ]
        names = [endpoint.name for endpoint in found]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidInput("workers", "names that differ", f"{name} at {targets[index]} and before")
        self._placement = place({status.worker: status.expert_numerics_id for status in statuses})
        self._publisher = MembershipPublisher(self._placement, contents)
        self._loaded = [threading.Event() for _ in found]
        self._refusals: dict[str, ColibriError] = {}
        self._threads = [
            threading.Thread(
                target=self._watch, args=(index, endpoint), name=f"colibri-ask-{endpoint.name}", daemon=True
            )
            for index, endpoint in enumerate(found)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def directory(self) -> Directory:
        return self._publisher.directory

    def wait_serving(self) -> Directory:
        """Returns when every worker has loaded its experts. Raises ColibriError naming one that has not in time, or
        at once one that never will, being another model's."""
        bound = Deadline.after(self._options.load_timeout_s, self._clock)
        for name, loaded in zip(self._placement.workers, self._loaded, strict=True):
            if not loaded.wait(bound.remaining(self._clock)):
                raise ColibriError(f"worker {name} has not loaded its experts in time", peer=name)
            if name in self._refusals:
                raise self._refusals[name]
        return self.directory

    def close(self) -> None:
        """Ends the watching; the workers stay as they are."""
        self._closing.set()
        for thread in self._threads:
            thread.join(self._options.answer_timeout_s + 5.0)

    def _find(self, target: str) -> expert_pb2.StatusReply:
        return ask_status(
            target,
            f"worker at {target}",
            self._options.find_timeout_s,
            security=self._security,
            wait_for_ready=True,
        )

    def _watch(self, index: int, endpoint: WorkerEndpoint) -> None:
        serving = False
        while not self._closing.is_set():
            try:
                status = ask_status(
                    endpoint.target,
                    f"worker {endpoint.name}",
                    self._options.answer_timeout_s,
                    security=self._security,
                )
                if serving and status.incarnation != endpoint.incarnation:
                    self._take_out(endpoint, "was restarted")
                    serving = False
                if not serving:
                    endpoint = replace(endpoint, incarnation=status.incarnation)
                    self._load(index, endpoint)
                    self._publisher.add(endpoint)
                    self._loaded[index].set()
                    serving = True
            except ColibriError as error:
                if serving:
                    self._take_out(endpoint, str(error))
                    serving = False
                elif error.code in _FINAL and not error.retryable and not self._loaded[index].is_set():
                    refusal = ColibriError(f"worker {endpoint.name}: {error.message}", peer=endpoint.name)
                    refusal.code = error.code
                    self._refusals[endpoint.name] = refusal
                    self._loaded[index].set()
            self._closing.wait(self._options.poll_s)

    def _load(self, index: int, endpoint: WorkerEndpoint) -> None:
        load_experts(
            endpoint,
            self._placement.experts_of(index),
            self._placement.epoch,
            Deadline.after(self._options.load_timeout_s, self._clock),
            lambda step: self._progress(
                endpoint.name, step.experts_done, step.experts_total, step.bytes_done
            ),
            contents=self._publisher.contents,
        )

    def _take_out(self, endpoint: WorkerEndpoint, why: str) -> None:
        if self._publisher.remove(endpoint.name, endpoint.incarnation):
            self._log(f"worker {endpoint.name} at {endpoint.target} is out: {why}")
