"""What the threads of a coordinator's placement share."""

from __future__ import annotations

import itertools
import random
import threading

from colibri.cluster.placing.commands import Scale, Ticket
from colibri.cluster.placing.transaction import Step
from colibri.cluster.workers.expert_calls import Cancellation
from colibri.cluster.workers.membership import MembershipPublisher
from colibri.deadline import Deadline
from colibri.errors import WorkerLost
from colibri.placement import WorkerEndpoint, spread
from tests.attacks.stress.case import Case, Round

NAMES = ("w0", "w1", "w2")


def publisher() -> Round:
    """Workers come and go while placements change: what is published is one of the states that there were."""
    shared = MembershipPublisher(spread(2, 6, NAMES, 2))
    incarnations, epochs = itertools.count(1), itertools.count(2)
    heard = threading.Event()
    shared.listen(heard.set)

    def live(name: str) -> None:
        endpoint = WorkerEndpoint(name, next(incarnations), "unix:/x")
        _, missing = shared.join(endpoint, frozenset())
        _, missing = shared.join(endpoint, frozenset(missing))
        assert not missing or shared.current.placement.epoch
        shared.remove(name, endpoint.incarnation)

    def change() -> None:
        try:
            shared.commit(spread(2, 6, NAMES, random.choice((1, 2, 3)), next(epochs)), {"w0": 1 << 62})
        except WorkerLost:
            shared.commit(spread(2, 6, NAMES, random.choice((1, 2, 3)), next(epochs)), {})

    def read() -> None:
        seen = shared.current
        assert set(seen.endpoints) <= set(NAMES)
        with shared.directory.reading() as reading:
            assert reading.membership.placement.epoch >= seen.placement.epoch

    def check() -> None:
        assert not shared.current.endpoints, "a worker that has ended is published"

    return Round([*(lambda name=name: live(name) for name in NAMES), change, read], check)


def ticket() -> Round:
    shared = Ticket(Scale(2), Deadline())
    seen: list[int] = []
    numbers = itertools.count(1)

    def work() -> None:
        shared.report(Step("prepare", "x", next(numbers), 0, 1))

    def read() -> None:
        for step in shared.steps(0.001):
            if step is not None:
                seen.append(step.experts_done)
            return

    def check() -> None:
        shared.end()
        seen.extend(step.experts_done for step in shared.steps(0.0) if step is not None)
        assert seen == sorted(seen)
        assert not seen or seen[-1] == next(numbers) - 1

    return Round([work, read], check)


class _Call:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def cancellation() -> Round:
    """A call that began before or after the cancellation is cancelled; none slips between."""
    shared = [Cancellation()]
    lock = threading.Lock()
    slipped: list[_Call] = []

    def call() -> None:
        mine, covered = shared[0], _Call()
        with mine.covering(covered):
            pass
        late = _Call()
        with mine.covering(late):
            if mine is not shared[0] and not late.cancelled:
                with lock:
                    slipped.append(late)

    def cancel() -> None:
        before = shared[0]
        before.cancel()
        shared[0] = Cancellation()

    def check() -> None:
        assert not slipped

    return Round([call, call, call, cancel], check)


CASES = [
    Case("membership publisher", publisher),
    Case("ticket", ticket),
    Case("cancellation", cancellation),
]
