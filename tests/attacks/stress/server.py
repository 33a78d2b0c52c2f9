"""What the calls of a server share: places, refusals, health, turns, the log, confined processes."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from grpc_health.v1 import health_pb2

from colibri.deadline import Deadline
from colibri.errors import Busy, Cancelled, DeadlineExpired, InvalidInput, Unauthenticated
from colibri.log_writer import LogWriter
from colibri.models.plain_tokenizer import write_plain_tokenizer
from colibri.models.tokenizer import Tokenizer
from colibri.rpc.health import Health
from colibri.rpc.places import Bounds, Places, Wait
from colibri.rpc.refusals import Refusals
from colibri.rpc.turns import Turns, Waiter
from tests.attacks.stress.case import Case, Round
from tests.attacks.stress.model import scratch

PEERS = tuple(f"ipv4:127.0.0.1:{port}" for port in range(4))


class Call:
    """A call's context, of a random connection. It may be cut, and is over once."""

    def __init__(self) -> None:
        self._peer = random.choice(PEERS)
        self._callbacks: list[Callable[[], None]] = []
        self.cuts = 0

    def peer(self) -> str:
        return self._peer

    def cancel(self) -> None:
        self.cuts += 1

    def is_active(self) -> bool:
        return not self.cuts

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self._callbacks.append(callback)
        return True

    def over(self) -> None:
        for callback in self._callbacks:
            callback()

    def set_trailing_metadata(self, metadata: object) -> None: ...

    def set_code(self, code: object) -> None: ...

    def set_details(self, details: str) -> None: ...


def places() -> Round:
    """More callers than places, some of whom keep the server waiting."""
    shared = Places("stress", 4, Bounds(message_s=0.0005, reader_s=0.0005))

    def call() -> None:
        context: Any = Call()
        try:
            place = shared.enter(context, random.choice(("", "alice", "bob")))
        except Busy:
            return
        with suppress(Busy):  # it lost its place before its message came
            for wait in (Wait.NOTHING, random.choice(list(Wait)), Wait.NOTHING):
                place.waits(wait)
                assert shared.taken <= 4
        place.leave()
        context.over()

    def check() -> None:
        assert (shared.taken, shared.unread) == (0, 0), "a place was not given back"
        for _ in range(4):  # a caller that is counted twice would not get in
            context: Any = Call()
            shared.enter(context, "carol" if shared.taken < 3 else "")
        assert shared.taken == 4

    return Round([call] * 5 + [shared.sweep], check)


def refusals() -> Round:
    shared = Refusals(0.0)
    begun, ended = itertools.count(), itertools.count()

    def end(reply: object) -> None:
        next(ended)

    def refuse() -> None:
        context: Any = Call()
        next(begun)
        shared.refuse(context, Unauthenticated("authorization: expected a token"), end)

    def check() -> None:
        while shared.kept:
            shared.tell_late()
        assert next(begun) == next(ended), "a call was not ended, or twice"

    return Round([refuse, refuse, refuse, shared.tell_late], check)


def health() -> Round:
    shared = Health(["", "colibri"])
    over = threading.Event()
    request = health_pb2.HealthCheckRequest(service="colibri")

    def change() -> None:
        shared.set_serving(random.random() < 0.5)

    def check_() -> None:
        context: Any = Call()
        assert shared.Check(request, context).status in (1, 2)

    def watch() -> None:
        context: Any = Call()
        told = [reply.status for reply in itertools.islice(shared.Watch(request, context), 5)]
        assert all(before != after for before, after in itertools.pairwise(told)), "told twice"
        if over.is_set():
            assert told[-1] == (1 if shared._serving else 2), "the last status was not told"

    def wake() -> None:
        over.set()
        shared.close()

    return Round([change, check_, watch, watch], wake=wake)


def turns() -> Round:
    """Some wait too long, some clients leave while they wait, one waits in vain."""
    shared = Turns("stress", most_waiting=3, most_of_one=2, wait_s=0.002)
    inside = Counter[str]()

    def wait(leaves: float) -> None:
        leaving: list[Callable[[], None]] = []

        def on_leaving(leave: Callable[[], None]) -> bool:
            leaving.append(leave)
            return random.random() > leaves

        deadline = Deadline.after(random.choice((0.0005, 20.0)))
        waiter = Waiter(random.choice(("a", "b", "c")), deadline, on_leaving)
        with suppress(Busy, Cancelled, DeadlineExpired), shared.turn(waiter):
            inside["now"] += 1
            assert inside["now"] == 1, "two have the turn"
            inside["now"] -= 1
        for leave in leaving:
            leave()  # the call is over

    def check() -> None:
        with shared.turn(Waiter("last", Deadline.after(20.0))):
            pass
        assert shared.waiting == 0

    return Round([lambda: wait(0.0)] * 4 + [lambda: wait(0.2)], check)


def log() -> Round:
    """Half of the lines find no room: each is written whole or counted, and those of a thread keep their order."""
    reader, writer = os.pipe()
    shared = LogWriter(writer, 200)
    text = bytearray()
    numbers = [itertools.count() for _ in range(3)]

    def put(which: int) -> Callable[[], None]:
        def line() -> None:
            shared.put(f"{which} {next(numbers[which])}\n".encode())

        return line

    def read() -> None:
        text.extend(os.read(reader, 4096))

    def end() -> None:
        shared.put(b"end\n")

    def wake() -> None:
        end()  # the reader waits for a line

    def check() -> None:
        assert shared.close(20.0)
        os.close(writer)
        while part := os.read(reader, 1 << 16):
            text.extend(part)
        os.close(reader)
        lines = text.decode().splitlines()
        written = [line.split() for line in lines if line[0] in "012"]
        for which in range(3):
            seen = [int(number) for name, number in written if int(name) == which]
            assert seen == sorted(set(seen)), "lines in another order, or twice"
        ends = lines.count("end")
        put_in_all = sum(next(count) for count in numbers) + 1
        assert len(written) + ends + shared.dropped == put_in_all

    return Round([put(0), put(1), put(2), read], check, wake)


def confined() -> Round:
    """One process for all who ask, whom somebody kills meanwhile."""
    folder = scratch()
    write_plain_tokenizer(folder, 300, 64)
    shared = Tokenizer.load(folder)

    def ask() -> None:
        text = "".join(random.choices("abc ", k=5))
        with suppress(Busy, InvalidInput):  # its process was killed meanwhile
            assert len(shared.ids(text, False)) == 5

    shots = [1]  # a process that is killed while it starts is an error

    def look() -> None:
        for pid in shared.pids:
            if random.random() < 0.001 and shots:
                shots.clear()
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def check() -> None:
        assert len(shared.ids("abc", False)) == 3
        shared.close()
        assert not shared.pids

    return Round([ask, ask, look], check)


CASES = [
    Case("places of a server", places),
    Case("refusals told late", refusals),
    Case("health", health),
    Case("turns of large calls", turns),
    Case("log", log),
    Case("confined process", confined),
]
