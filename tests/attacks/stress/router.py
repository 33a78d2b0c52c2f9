"""What the threads of a router share."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Callable

import numpy as np

from colibri.deadline import Deadline
from colibri.errors import WorkerLost
from colibri.kernels.api import GateResult
from colibri.placement import Directory, Membership, WorkerEndpoint, spread
from colibri.router_service.connection import Connection
from colibri.router_service.connections import OnEnd
from colibri.router_service.expert_loads import ExpertLoads
from colibri.router_service.fleet import Fleet
from colibri.router_service.hedge import HedgeBudget
from colibri.router_service.keeper import Keeper
from colibri.router_service.latency import LatencyModel
from colibri.router_service.peer import Peer
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.stats import ExchangeTimes, Recorder, RoutingEvents
from colibri.wire.limits import FrameLimits
from tests.attacks.stress.case import Case, Round
from tests.attacks.stress.links import EchoLink, forward

NAMES = ("w0", "w1", "w2")
LAYERS, EXPERTS = 2, 6
LIMITS = FrameLimits(LAYERS, EXPERTS, 2, 4, "fp32", 64)


def latency() -> Round:
    """A model is new every other millisecond: what its threads change goes on only until all sizes are measured."""
    shared = [LatencyModel(FailoverPolicy())]

    def adds(seed: int) -> Callable[[], None]:
        draw = random.Random(seed)

        def add() -> None:
            windows = shared[0].windows
            window = windows[draw.randrange(len(windows))]
            for _ in range(17):
                window.add(draw.random() * 1e-3, draw.random() < 0.5)

        return add

    def read() -> None:
        model = shared[0]
        assert all(0.0 < usual < 1.0 for usual in model.usual().values())
        model.percentile(0.99)
        assert all(window.deadline_after > 0 for window in model.windows)

    def renew() -> None:
        time.sleep(0.002)
        shared[0] = LatencyModel(FailoverPolicy())

    def check() -> None:
        model = shared[0]
        for size in model.usual():
            assert math.isfinite(model.windows[size].deadline_after)
        model.forget_exact()
        assert not any(window.last_exact(64) for window in model.windows)

    return Round([adds(1), adds(2), adds(3), read, renew, lambda: shared[0].forget_exact()], check)


def membership(epoch: int, draw: random.Random) -> Membership:
    alive = {
        name: WorkerEndpoint(name, draw.randrange(1, 4), "unix:/x") for name in NAMES if draw.random() < 0.8
    }
    return Membership(spread(LAYERS, EXPERTS, NAMES, 2, epoch), alive)


def directory() -> Round:
    held = Directory(membership(1, random.Random(0)))
    epochs, draw = itertools.count(2), random.Random(1)

    def publish() -> None:
        epoch = next(epochs)
        held.publish(membership(epoch, draw))
        held.wait_unused(epoch, 0.001)

    def read() -> None:
        with held.reading() as reading:
            seen = reading.membership
            for layer in range(LAYERS):
                seen.placement.division(layer)
            assert seen.placement.epoch <= held.current().placement.epoch

    def wait() -> None:
        held.wait_change(held.current(), 0.001)

    return Round([publish, read, read, wait], lambda: _unused(held))


def _unused(held: Directory) -> None:
    assert held.wait_unused(held.current().placement.epoch + 1, 0.0), "somebody still reads a snapshot"


def fleet() -> Round:
    held = Directory(membership(1, random.Random(0)))
    happened = Recorder(RoutingEvents())

    def connect(endpoint: WorkerEndpoint, timeout_s: float, on_end: OnEnd) -> Connection:
        if random.random() < 0.2:
            raise WorkerLost("refused", peer=endpoint.name)
        return Connection(endpoint, EchoLink(endpoint), LIMITS, 64, on_end=on_end)

    keeper = Keeper(connect, LIMITS, itertools.count(1), 0.5)
    workers = Fleet(held, FailoverPolicy(), happened, keeper.start)
    epochs, draw = itertools.count(2), random.Random(2)

    def peers() -> list[Peer]:
        return list(workers.present().values())

    def publish() -> None:
        held.publish(membership(next(epochs), draw))
        workers.follow()

    def route() -> None:
        seen = held.current()
        routes = workers.routes(seen)
        table = routes.table(0)
        assert table is not None
        assert len(routes.ranks) == len(NAMES)
        workers.report()

    def hurt() -> None:
        for peer in peers():
            draw_hurt.choice((workers.eject, workers.lost_hedge, workers.busy))(peer)
            workers.probed(peer, draw_hurt.random() < 0.7)
            connection = peer.connection
            if connection is not None and draw_hurt.random() < 0.05:
                connection.fail(WorkerLost("cut", peer=peer.name))

    def measure() -> None:
        for peer in peers():
            peer.latency.windows[draw_measure.randrange(30)].add(draw_measure.random(), True)
        workers.compare()
        workers.check_links()

    draw_hurt, draw_measure = random.Random(3), random.Random(4)
    return Round([publish, route, route, hurt, measure], lambda: workers.close(5.0))


def connection() -> Round:
    endpoint = WorkerEndpoint("w0", 1, "unix:/x")
    shared = Connection(endpoint, EchoLink(endpoint), LIMITS, 64)
    ids = itertools.count(1)
    wrong: list[str] = []

    def ask() -> None:
        header = forward(LIMITS, next(ids))
        message = shared.send(header, bytes(LIMITS.row_bytes), Deadline.after(20.0), 20.0)
        if random.random() < 0.1:
            shared.abandon(message)
        elif not shared.wait(message, time.monotonic() + 20.0):
            wrong.append(f"{header.correlation_id}: no answer")
        elif message.reply is None or message.reply.header.correlation_id != header.correlation_id:
            wrong.append(f"{header.correlation_id}: {message.error!r}")

    def check() -> None:
        assert not wrong, wrong[:3]
        shared.close()

    return Round([ask] * 4, check)


def sums() -> Round:
    times, events = Recorder(ExchangeTimes()), Recorder(RoutingEvents())
    loads = ExpertLoads(LAYERS, EXPERTS)
    budget = HedgeBudget(0.05, 4)
    gate = GateResult(np.zeros((3, 2), np.uint32), np.zeros((3, 2), np.float32), np.ones(3, np.bool_))
    lock, added = threading.Lock(), [0]

    def add() -> None:
        with lock:
            added[0] += 1
        times.add(ExchangeTimes(1, 2))
        events.add(RoutingEvents(1))
        loads.add(1, gate)

    def read() -> None:
        seen = times.snapshot()
        assert seen.messages == 2 * seen.exchanges, "a sum was read half added"
        loads.snapshot()
        budget.take(int(seen.messages), 1)

    def check() -> None:
        assert times.snapshot().exchanges == events.snapshot().failovers == added[0]
        assert loads.snapshot()[1, 0] == 6 * added[0]

    return Round([add, add, add, read], check)


CASES = [
    Case("latency model", latency),
    Case("directory", directory),
    Case("fleet, health and routing", fleet),
    Case("connection", connection),
    Case("sums of a router", sums),
]
