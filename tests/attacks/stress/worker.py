"""What the threads of a worker share."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections.abc import Callable

from colibri.deadline import Deadline
from colibri.errors import Busy, ColibriError, ExpertNotLoaded
from colibri.expert_service.counters import Counters
from colibri.expert_service.epochs import Epochs
from colibri.expert_service.faults import FaultKind, FaultRule, Faults
from colibri.expert_service.held_replies import HeldReplies
from colibri.expert_service.inbox import Inbox
from colibri.expert_service.queue import ExecutionQueue, Lane, Work
from colibri.expert_service.store import WeightStore
from colibri.transport._shared_ring import SharedRing
from colibri.wire.frame import Frame
from colibri.wire.header import Header
from tests.attacks.stress.case import Case, Round
from tests.attacks.stress.model import tiny_model


def queue() -> Round:
    waiting = ExecutionQueue(16, 1000)
    computing = threading.Lock()
    numbers = itertools.count(1)

    def stream(seed: int) -> Callable[[], None]:
        draw = random.Random(seed)
        woken = threading.Event()
        lane = Lane(woken.set)
        waiting.open_lane(lane)

        def serve() -> None:
            number = next(numbers)
            try:
                waiting.reserve(10)
            except Busy:
                pass
            else:
                if draw.random() < 0.2:
                    waiting.release(10)
                else:
                    frame = Frame(Header(correlation_id=number), memoryview(b""))
                    work = Work((number, 0), frame, draw.randrange(3), time.monotonic(), Deadline(), 10, 10)
                    waiting.push(lane, work)
                    if draw.random() < 0.2:
                        assert waiting.cancel(lane, work.key)
            while lane:
                taken = waiting.take(lane, will_wait=True)
                if taken is not None:
                    assert computing.acquire(blocking=False), "two streams have the turn"
                    computing.release()
                    waiting.pass_turn()
                else:
                    assert woken.wait(20.0), "a stream was not woken"
                    woken.clear()

        return serve

    def look() -> None:
        waiting.oldest()
        assert 0 <= waiting.waiting <= 16
        waiting.wake_all()

    def check() -> None:
        assert waiting.waiting == 0
        assert waiting.oldest() is None

    return Round([stream(1), stream(2), stream(3), look], check)


def store() -> Round:
    tiny = tiny_model()
    config = tiny.checkpoint.config
    keys = [(layer, expert) for layer in range(config.layers) for expert in range(config.experts)]
    held = WeightStore(tiny.checkpoint, tiny.backend, tiny.mode, budget=None)

    def load() -> None:
        held.load(random.sample(keys, 3))

    def unload() -> None:
        held.unload(random.sample(keys, 2))

    def look() -> None:
        with contextlib.suppress(ExpertNotLoaded):
            assert held.get(*random.choice(keys)).data.nbytes == held.expert_bytes
        found = held.held()
        assert found == sorted(set(found))
        assert held.bytes % held.expert_bytes == 0
        assert len(held.packed()) <= len(keys)

    def check() -> None:
        held.load(keys)
        assert held.unload(keys) == len(keys) * held.expert_bytes
        assert len(held) == 0

    return Round([load, load, unload, look], check)


def epochs() -> Round:
    shared = Epochs()
    named = itertools.count(1)

    def name() -> None:
        shared.name(next(named))

    def retire() -> None:
        shared.retire_below(shared.newest - 3)

    def look() -> None:
        oldest = shared.oldest
        assert oldest <= shared.newest
        assert oldest <= shared.oldest

    def check() -> None:
        assert shared.newest == next(named) - 1

    return Round([name, name, retire, look], check)


def counters() -> Round:
    shared, lock, added = Counters(), threading.Lock(), [0]

    def add() -> None:
        with lock:
            added[0] += 1
        shared.done(2)
        shared.refused()
        shared.expired()
        shared.cancelled(3)

    def read() -> None:
        counts = shared.counts
        assert counts.rows == 2 * counts.done

    def check() -> None:
        assert shared.counts == (added[0], added[0], added[0], 3 * added[0], 2 * added[0])

    return Round([add, add, add, read], check)


def faults() -> Round:
    shared = Faults()

    def act() -> None:
        try:
            shared.at_admission()
            shared.at_load()
        except ColibriError:
            pass
        shared.deliver([(b"frame", b"tensor")])

    def replace() -> None:
        shared.replace(
            [FaultRule(kind, 0.5, 0.0, random.randrange(99)) for kind in (FaultKind.BUSY, FaultKind.CORRUPT)]
        )

    return Round([act, act, replace, lambda: shared.injected])


def inbox() -> Round:
    """gRPC's thread brings frames, the stream's takes them, others wake it."""
    frames = Inbox(1 << 20, time.monotonic)
    numbers = itertools.count()
    over = threading.Event()

    def requests() -> object:
        while not over.is_set():
            time.sleep(0)
            yield frames.arrived(next(numbers).to_bytes(8, "big"))

    frames.attach(requests())  # type: ignore[arg-type]
    taken: list[int] = []

    def serve() -> None:
        frames.set_busy(random.random() < 0.5)
        arrival = frames.take() or frames.wait()
        if arrival is not None:
            taken.append(int.from_bytes(arrival.frame, "big"))

    def wake() -> None:
        over.set()
        frames.wake()

    def check() -> None:
        frames.close()
        until = time.monotonic() + 20.0
        while (arrival := frames.take()) is not None:
            taken.append(int.from_bytes(arrival.frame, "big"))
            assert time.monotonic() < until
        assert taken == sorted(taken), "frames changed places"
        assert taken == list(range(len(taken))), "a frame is missing"

    return Round([serve, frames.wake, frames.empty], check, wake)


def held_replies() -> Round:
    woken = threading.Event()
    held = HeldReplies(woken.set, time.monotonic)
    numbers = itertools.count()
    out: list[int] = []

    def serve() -> None:
        number = next(numbers)
        held.hold((number, 0), (b"x",), random.random() * 1e-3)
        woken.wait(0.002)
        woken.clear()
        out.extend(key[0] for key, _ in held.due())

    def check() -> None:
        until = time.monotonic() + 20.0
        while len(held):
            assert time.monotonic() < until, "a reply was not due in time"
            out.extend(key[0] for key, _ in held.due())
        held.close()
        assert sorted(out) == list(range(next(numbers)))

    return Round([serve, lambda: len(held)], check)


def ring() -> Round:
    token = bytes(16)
    worker = SharedRing.create(1 << 16, token)
    router = SharedRing.open(f"/proc/{os.getpid()}/fd/{worker.fd}", token)
    sent, received = [0], itertools.count()

    def write() -> None:
        number = sent[0]
        if router.write((number.to_bytes(8, "big"), bytes(number % 500)), 0.01):  # nobody may read any more
            sent[0] += 1

    def read() -> None:
        record = worker.read(0.002, 0.0)
        if record is not None:
            number = next(received)
            assert int.from_bytes(record[:8], "big") == number
            assert len(record) == 8 + number % 500

    def look() -> None:
        assert not worker.closed
        assert worker.ready in (True, False)
        worker.wake()

    def check() -> None:
        while True:
            record = worker.read(0.0, 0.0)
            if record is not None:
                next(received)
            elif not worker.ready:
                break
        assert sent[0] == next(received), "a record is missing"
        router.close()
        worker.close()

    return Round([write, read, look], check)


CASES = [
    Case("execution queue", queue),
    Case("weight store", store),
    Case("epochs", epochs),
    Case("counters of a worker", counters),
    Case("faults", faults),
    Case("inbox", inbox),
    Case("held replies", held_replies),
    Case("shared-memory ring", ring),
]
