"""Carry out a change of placement while requests run: prepare, commit, retire, or abort.

Until the commit the old placement serves untouched, so a failure before it leaves everything as it was. The commit
is one publication, which routers see at their next layer. What is no longer needed is dropped afterwards, once
nobody uses an older epoch. A failure before the commit leaves loaded experts behind, which the same retiring drops:
workers are asked what they hold, so nothing has to be remembered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from colibri.cluster.experts.contents import Contents
from colibri.cluster.experts.holders import held_by, holders_of
from colibri.cluster.placing.change import Change
from colibri.cluster.workers.expert_calls import (
    Cancellation,
    ask_status,
    held_experts,
    load_experts,
    retire_experts,
)
from colibri.cluster.workers.membership import MembershipPublisher
from colibri.deadline import Clock, Deadline
from colibri.errors import Cancelled, ColibriError, DeadlineExpired, WorkerLost
from colibri.placement import WorkerEndpoint
from colibri.v1 import expert_pb2

#: How often a prepare looks whether it is to be called off.
_LOOK_S = 0.02
#: How long loads that were called off may take to notice.
_JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class PhaseBounds:
    """Bounds, in seconds. retire_s: how long to wait for calls of older epochs; answer_s: for each small call to a
    worker.
    """

    prepare_s: float = 1800.0
    retire_s: float = 60.0
    answer_s: float = 3.0


class Interrupted(Cancelled):
    """Something more urgent came up before the commit, or the reason for the change went away. The old placement
    serves.
    """


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of a change. phase: prepare, commit or retire; experts: of a prepare; epoch: in force."""

    phase: str
    text: str
    experts_done: int = 0
    experts_total: int = 0
    epoch: int = 0


Report = Callable[[Step], None]
Interrupting = Callable[[], bool]


def run_change(
    change: Change,
    publisher: MembershipPublisher,
    bounds: PhaseBounds,
    deadline: Deadline,
    *,
    yielding: bool,
    interrupted: Interrupting,
    report: Report,
    clock: Clock = time.monotonic,
    absent: frozenset[str] = frozenset(),
) -> bool:
    """Carries out a change. Returns, with the new placement in force, whether everything old is gone; if not, call
    `retire`.

    yielding: run the loads at a low CPU priority.
    interrupted: asked all along; ends the prepare, and puts off the retiring.
    absent: workers that the change makes up for; it is called off if one of them is back.

    Raises what made the change impossible (a refused load, a lost worker, a deadline) or Interrupted. Then the old
    placement serves, and `retire` will drop what was loaded (abort).
    """
    alive = publisher.current.endpoints
    missing = sorted(set(change.loads) - set(alive))
    if missing:
        raise WorkerLost(f"worker {missing[0]} is not alive", peer=missing[0])
    endpoints = {name: alive[name] for name in change.loads}
    bound = Deadline.after(bounds.prepare_s, clock).earlier(deadline)

    def called_off() -> bool:
        return interrupted() or bool(absent.intersection(publisher.current.endpoints))

    _prepare(change, endpoints, bound, yielding, called_off, report, clock, publisher.contents)
    loaded = {name: endpoint.incarnation for name, endpoint in endpoints.items()}
    if not publisher.commit(change.new, loaded, absent):
        raise Interrupted(f"{', '.join(sorted(absent))}: not all of them are away any more")
    report(Step("commit", "routers switch at their next layer", epoch=change.new.epoch))
    return retire(publisher, bounds, interrupted, report)


def retire(
    publisher: MembershipPublisher, bounds: PhaseBounds, interrupted: Interrupting, report: Report
) -> bool:
    """Has every live worker drop what the placement in force does not give it, and refuse older epochs, once nobody
    uses those.

    Returns False if that was put off, because an epoch is still in use, a worker did not answer, or something more
    urgent came up. Then call it again.
    """
    membership = publisher.current
    epoch = membership.placement.epoch
    report(Step("retire", "waiting for calls of older epochs", epoch=epoch))
    until = Deadline.after(bounds.retire_s)
    while not publisher.directory.wait_unused(epoch, until.bound(_LOOK_S)):
        if until.expired() or interrupted():
            report(Step("retire", "put off: calls of older epochs still run", epoch=epoch))
            return False
    holders = holders_of(membership.placement)

    def clean(endpoint: WorkerEndpoint) -> None:
        surplus = held_experts(endpoint, bounds.answer_s) - held_by(holders, endpoint.name)
        retire_experts(endpoint, epoch, sorted(surplus), bounds.answer_s)

    calls = _Calls({name: partial(clean, endpoint) for name, endpoint in membership.endpoints.items()})
    while not calls.done(_LOOK_S):
        if interrupted():
            return False
    for name, error in calls.failures.items():
        report(Step("retire", f"put off: worker {name}: {error.message}", epoch=epoch))
    return not calls.failures


def answering(endpoints: Mapping[str, WorkerEndpoint], timeout_s: float) -> frozenset[str]:
    """Returns the workers that give a status within `timeout_s` seconds."""
    answered: set[str] = set()

    def ask(endpoint: WorkerEndpoint) -> None:
        ask_status(endpoint.target, f"worker {endpoint.name}", timeout_s, security=endpoint.security)
        answered.add(endpoint.name)

    _Calls({name: partial(ask, endpoint) for name, endpoint in endpoints.items()}).done(timeout_s)
    return frozenset(answered)


def _prepare(
    change: Change,
    endpoints: Mapping[str, WorkerEndpoint],
    deadline: Deadline,
    yielding: bool,
    interrupted: Interrupting,
    report: Report,
    clock: Clock,
    contents: Contents,
) -> None:
    """Runs all loads at once. Raises the first failure, after calling off the others."""
    total = change.experts_to_load
    names = ", ".join(endpoints)
    epoch = change.old.epoch
    report(Step("prepare", f"loading on {names}" if names else "nothing to load", 0, total, epoch))
    done = dict.fromkeys(endpoints, 0)
    cancellation = Cancellation()

    def load(endpoint: WorkerEndpoint) -> None:
        def progress(step: expert_pb2.LoadProgress) -> None:
            done[endpoint.name] = step.experts_done
            report(Step("prepare", f"loading on {names}", sum(done.values()), total, epoch))

        load_experts(
            endpoint,
            change.loads[endpoint.name],
            change.new.epoch,
            deadline,
            progress,
            yielding=yielding,
            cancellation=cancellation,
            contents=contents,
        )

    calls = _Calls({name: partial(load, endpoint) for name, endpoint in endpoints.items()})
    try:
        while not calls.done(_LOOK_S):
            for error in calls.failures.values():
                raise error
            if interrupted():
                raise Interrupted("the change gives way to a more urgent one")
            if deadline.expired(clock):
                raise DeadlineExpired(
                    f"the change was not prepared in time: {sum(done.values())} of {total} loaded"
                )
        for error in calls.failures.values():
            raise error
    finally:
        cancellation.cancel()
        calls.done(_JOIN_S)


class _Calls:
    """Calls to several workers at the same time, each on its own thread. failures: by worker, as they come."""

    def __init__(self, calls: Mapping[str, Callable[[], None]]) -> None:
        self._lock = threading.Lock()
        self._failures: dict[str, ColibriError] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(name, call), name=f"colibri-change-{name}", daemon=True)
            for name, call in calls.items()
        ]
        for thread in self._threads:
            thread.start()

    @property
    def failures(self) -> Mapping[str, ColibriError]:
        """The failures so far."""
        with self._lock:
            return dict(self._failures)

    def done(self, timeout_s: float) -> bool:
        """Waits for all calls, at most `timeout_s` seconds. Returns whether all have ended."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except ColibriError as error:
            self._failed(name, error)
        except Exception as error:  # of ours; the change fails, the thread that waits does not hang
            self._failed(name, ColibriError(f"worker {name}: {error!r}", peer=name))

    def _failed(self, name: str, error: ColibriError) -> None:
        with self._lock:
            self._failures[name] = error
