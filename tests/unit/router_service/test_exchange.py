"""The exchange over links of this process, whose workers take nothing, say nothing, or answer when told to."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from colibri.deadline import Deadline
from colibri.errors import DeadlineExpired, WorkerLost
from colibri.kernels.api import F32, GateResult
from colibri.placement import Directory, Membership, WorkerEndpoint, spread
from colibri.router_service import remote
from colibri.router_service.connection import Connection
from colibri.router_service.connections import Connect, OnEnd
from colibri.router_service.executor import PartResult
from colibri.router_service.handshake import RouterIdentity
from colibri.router_service.latency import WARM_SAMPLES
from colibri.router_service.plan import plan_rows
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.remote import RemoteExecutor
from colibri.router_service.stats import HealthState
from colibri.transport.link import LinkKind
from colibri.v1 import expert_pb2
from colibri.wire.chunks import message_frames
from colibri.wire.frame import read_frame
from colibri.wire.header import Header
from colibri.wire.limits import FrameLimits
from tests.support.clusters import eventually

HIDDEN, EXPERTS, TOP_K = 4, 6, 2
LIMITS = FrameLimits(1, EXPERTS, TOP_K, HIDDEN, "fp32")


class Worker:
    """The other end of a link: answers each unit with (expert weights' sum, ...), unless `deaf` (takes nothing) or
    `mute` (takes all, answers nothing until it is `free`)."""

    kind = LinkKind.GRPC
    lost: str | None = None

    def __init__(self, endpoint: WorkerEndpoint) -> None:
        self.peer = endpoint.name
        self._incarnation = endpoint.incarnation
        self._answers: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._held: list[bytes] = []
        self.requests: list[tuple[int, int]] = []
        self.cancelled: list[tuple[int, int]] = []
        self.deaf = False
        self.mute = False

    def send(self, parts: Sequence[bytes | memoryview], timeout_s: float = 1.0) -> None:
        if self.lost is not None:
            raise WorkerLost(f"{self.peer}: {self.lost}", peer=self.peer)
        if self.deaf:
            time.sleep(timeout_s)
            raise DeadlineExpired(f"{self.peer}: full", peer=self.peer)
        header = read_frame(b"".join(parts)).header
        key = (header.correlation_id, header.attempt)
        if header.kind == expert_pb2.FRAME_KIND_CANCEL:
            self.cancelled.append(key)
            return
        self.requests.append(key)
        reply = Header(
            kind=expert_pb2.FRAME_KIND_RESULT,
            correlation_id=header.correlation_id,
            attempt=header.attempt,
            incarnation=self._incarnation,
            hidden=HIDDEN,
            units=header.units,
        )
        (frame,) = message_frames(reply, units(header).reshape(-1).data.cast("B"))
        self._held.append(b"".join(frame))
        if not self.mute:
            self.free()

    def free(self) -> None:
        self.mute = False
        while self._held:
            self._answers.put(self._held.pop(0))

    def receive(self, timeout_s: float) -> memoryview:
        try:
            answer = self._answers.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            raise DeadlineExpired(f"{self.peer}: nothing", peer=self.peer) from None
        if answer is None:
            raise WorkerLost(f"{self.peer}: closed", peer=self.peer)
        return memoryview(answer)

    def close(self) -> None:
        self.lost = "closed"
        self._answers.put(None)


def units(header: Header) -> F32:
    """Each slot's share is its weight times (expert + 1), summed in slot order."""
    experts = np.repeat(header.group_expert, header.group_count)
    out = np.zeros((header.units, HIDDEN), np.float32)
    for entry in np.argsort(header.entry_slot, kind="stable").tolist():
        share = np.float32(header.entry_weight[entry]) * np.float32(experts[entry] + 1)
        out[header.entry_unit[entry]] += share
    return out


class Bench:
    def __init__(self, directory: Directory, executor: RemoteExecutor, workers: dict[str, Worker]) -> None:
        self.directory = directory
        self.executor = executor
        self.workers = workers
        #: Whether the last layer's plan was changed on the way.
        self.changed = False
        self._rng = np.random.default_rng(1)

    def layer(self, deadline: Deadline | None = None) -> float:
        """One row per expert, so that every worker is asked; checks all sums. Returns the seconds it took."""
        first = np.arange(EXPERTS)
        experts = np.stack((first, (first + 1) % EXPERTS), axis=1).astype(np.uint16)
        weights = self._rng.random((EXPERTS, TOP_K)).astype(np.float32)
        gate = GateResult(experts, weights, np.ones(EXPERTS, np.bool_))
        with self.directory.reading() as reading:
            begun = time.monotonic()
            x = np.ones((EXPERTS, HIDDEN), np.float32)
            plan = plan_rows(gate, self.executor.table(0, reading.membership))
            results, changed = self.executor.run(0, x, plan, reading, deadline or Deadline(), 0)
            plan, self.changed = changed or plan, changed is not None
            took = time.monotonic() - begun
        for row in range(EXPERTS):
            total = np.zeros(HIDDEN, np.float32)
            for t in range(plan.row_offsets[row], plan.row_offsets[row + 1]):
                result = results[plan.part[t]]
                assert isinstance(result, PartResult)
                total += result.rows[plan.index[t]]
            shares = weights[row] * (experts[row].astype(np.float32) + 1)
            assert total.tobytes() == np.full(HIDDEN, shares[0] + shares[1], np.float32).tobytes()
        return took


@contextmanager
def bench(monkeypatch: pytest.MonkeyPatch, policy: FailoverPolicy, replicas: int = 2) -> Iterator[Bench]:
    workers: dict[str, Worker] = {}

    def connector(
        identity: RouterIdentity, limits: FrameLimits, on_late: Callable[[], None], kind: LinkKind
    ) -> Connect:
        def connect(endpoint: WorkerEndpoint, timeout_s: float, on_end: OnEnd) -> Connection:
            worker = Worker(endpoint)
            if endpoint.name in workers:
                worker.mute = workers[endpoint.name].mute
            workers[endpoint.name] = worker
            return Connection(endpoint, worker, limits, 1024, on_end=on_end, on_late=on_late)

        return connect

    monkeypatch.setattr(remote, "connector", connector)
    names = ["w0", "w1", "w2"]
    alive = {name: WorkerEndpoint(name, 1, "unix:/x") for name in names}
    directory = Directory(Membership(spread(1, EXPERTS, names, replicas), alive))
    executor = RemoteExecutor(RouterIdentity("test", "m", "n"), LIMITS, directory, policy=policy)
    try:
        assert executor.connect() == {}
        yield Bench(directory, executor, workers)
    finally:
        executor.close()


def test_a_link_that_takes_nothing_costs_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(monkeypatch, FailoverPolicy(hedge=False, deadline_cold_s=0.2)) as made:
        made.layer()  # waits for connections
        made.layer()
        assert not made.changed
        made.workers["w1"].deaf = True
        assert 0.15 < made.layer() < 1.0
        made.layer()  # pays nothing again
        routing = made.executor.routing()
        assert (routing.timeouts, routing.ejections, routing.failovers >= 1) == (1, 1, True)
        made.workers["w1"].deaf = False
        eventually(lambda: made.executor.workers()["w1"].state is HealthState.HEALTHY, 5.0, "w1 is back")


def test_a_link_that_takes_nothing_for_a_while_without_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(monkeypatch, FailoverPolicy(hedge=False, deadline_cold_s=0.1), replicas=1) as made:
        made.workers["w1"].deaf = True
        timer = threading.Timer(0.4, setattr, (made.workers["w1"], "deaf", False))
        timer.start()
        assert 0.3 < made.layer() < 3.0
        timer.join()


def test_a_late_message_is_hedged_once_it_is_known_what_late_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(monkeypatch, FailoverPolicy(deadline_floor_s=5.0, deadline_cold_s=5.0)) as made:
        for _ in range(WARM_SAMPLES):
            made.layer()
        slow = made.workers["w1"]
        slow.mute = True
        assert made.layer() < 1.0
        routing = made.executor.routing()
        assert routing.hedges == routing.hedges_won >= 1
        assert routing.failovers == routing.timeouts == 0
        # The loser is told, by the very id and attempt that it was asked with; its own answer is dropped.
        assert slow.cancelled == slow.requests[-1:]
        before = len(slow.requests)
        slow.free()
        made.layer()
        assert len(slow.requests) > before
        assert made.executor.routing().late_replies == 1
        # Attempts of one message differ.
        asked = [key for worker in made.workers.values() for key in worker.requests]
        assert len(set(asked)) == len(asked)


def test_no_hedges_without_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = FailoverPolicy(hedge_budget=0.0, deadline_floor_s=0.3, deadline_cold_s=0.3)
    with bench(monkeypatch, policy) as made:
        for _ in range(WARM_SAMPLES):
            made.layer()
        made.workers["w1"].mute = True
        assert 0.25 < made.layer() < 2.0
        routing = made.executor.routing()
        assert (routing.hedges, routing.timeouts) == (0, 1)


def test_the_first_answer_after_a_deadline_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both holders are silent: whichever speaks first settles it."""
    with bench(monkeypatch, FailoverPolicy(hedge=False, deadline_cold_s=0.1)) as made:
        for name in ("w1", "w2"):
            made.workers[name].mute = True
        timer = threading.Timer(0.5, made.workers["w1"].free)
        timer.start()
        last = threading.Timer(0.6, made.workers["w2"].free)
        last.start()
        assert 0.4 < made.layer() < 3.0
        timer.join()
        last.join()


def test_silence_of_all_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = FailoverPolicy(
        hedge=False,
        deadline_cold_s=0.05,
        deadline_floor_s=0.05,
        deadline_ceiling_s=0.3,
        wait_for_holder_s=0.2,
    )
    with bench(monkeypatch, policy) as made:
        for worker in list(made.workers.values()):
            worker.mute = True
        begun = time.monotonic()
        with pytest.raises(AssertionError):  # what came is no PartResult
            made.layer()
        assert time.monotonic() - begun < 30.0


def test_a_caller_s_deadline_ends_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench(monkeypatch, FailoverPolicy(deadline_cold_s=0.1)) as made:
        for worker in made.workers.values():
            worker.mute = True
        begun = time.monotonic()
        with pytest.raises(AssertionError):
            made.layer(Deadline.after(0.4))
        assert 0.35 < time.monotonic() - begun < 30.0
        # Nothing stays under way, but for the probes that have begun.
        for worker in made.workers.values():
            asked = {key for key in worker.requests if key[0] <= len(made.workers)}
            assert asked <= set(worker.cancelled)
