"""What the threads of any server share: the engine and its mailboxes, tokens, refusals, queues of a link."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable

from colibri.coordinator.engine import EngineOptions
from colibri.coordinator.handle import RequestHandle
from colibri.coordinator.reader_watch import ReaderWatch
from colibri.deadline import Clock
from colibri.errors import Busy, Unauthenticated
from colibri.generation import Accepted, Finished, FinishReason, Tokens, Usage
from colibri.security.access import Access, Rules
from colibri.security.plane_secret import PlaneSecret, kept_secret
from colibri.security.public_text import hide, public_text
from colibri.security.tokens import TokenFile
from colibri.transport.grpc_stream import _Gauge, _Outbox
from tests.attacks.stress.case import Case, Round
from tests.attacks.stress.model import scratch, tiny_model
from tests.support.tiny_engine import ask

END = Finished(FinishReason.LENGTH, None, Usage(1, 2), 9, 7)


def handle() -> Round:
    shared = RequestHandle(ask([1], 500), [None], lambda handle: None, lambda: None)
    watch = ReaderWatch(100.0, 0.001)
    numbers = itertools.count()
    seen: list[int] = []

    def put() -> None:
        number = next(numbers)
        shared.put(number, number)

    def take(timeout_s: float) -> bool:
        event = shared.next_event(timeout_s)
        if isinstance(event, Tokens):
            assert list(event.ids) == list(event.receipts)
            seen.extend(event.ids)
        return event is not None and not isinstance(event, Accepted)

    def read() -> None:
        with watch.watching(shared, lambda: None):
            take(0.002)

    def check() -> None:
        shared.finish(END)
        while not shared.ended:
            take(0.1)
        watch.close()
        assert seen == list(range(next(numbers))), "a token was lost or came twice"

    return Round([put, read, shared.cancel, shared.away_s], check)


def engine() -> Round:
    """Admission, cache and statistics belong to the engine's lock; requests come, are read and are cancelled."""
    tiny = tiny_model()
    made = tiny.engine(EngineOptions(kv_tokens=512, max_running=4, max_queued=4))
    running = made.__enter__()

    def request() -> None:
        try:
            asked = running.submit(ask([1, 2, 3], random.randrange(1, 4)))
        except Busy:
            time.sleep(0.001)
            return
        if random.random() < 0.3:
            asked.cancel()
        for _ in asked.events():
            if random.random() < 0.05:
                break

    def look() -> None:
        stats = running.stats()
        assert 0 <= stats.kv_pages_used <= stats.kv_pages
        running.abort("nobody")

    def check() -> None:
        until = time.monotonic() + 20.0
        while (stats := running.stats()).running or stats.waiting:
            assert time.monotonic() < until, "requests did not end"
            time.sleep(0.001)
        assert stats.kv_pages_used == 0, "pages were not given back"
        made.__exit__(None, None, None)

    return Round([request, request, request, look], check)


def _stepping() -> Clock:
    """Two seconds later at each look, so that files are looked at again each time."""
    seconds = itertools.count(0, 2)
    return lambda: float(next(seconds))


def tokens() -> Round:
    path = scratch() / "tokens"
    always = "always" + "a" * 20

    def write(names: int) -> None:
        temporary = path.with_name(f"tokens-{threading.get_ident()}")
        lines = [f"n{number} client {'x' * 16}{number}" for number in range(names)]
        temporary.write_text("\n".join([f"always operator {always}", *lines]) + "\n")
        temporary.chmod(0o600)
        temporary.replace(path)

    write(1)
    shared = TokenFile(path, clock=_stepping())
    access = Access("server", Rules({}, shared))

    def right() -> None:
        assert shared.check(f"Bearer {always}").name == "always"
        assert access.at_arrival("/s/M", (("authorization", f"Bearer {always}"),)) is None

    def wrong() -> None:
        refusal = access.at_arrival("/s/M", (("authorization", f"Bearer {'w' * 20}"),))
        assert isinstance(refusal, Unauthenticated)

    return Round([right, right, wrong, lambda: write(random.randrange(1, 5))])


def secret() -> Round:
    path = scratch() / "secret"
    found: set[PlaneSecret] = set()

    def keep() -> None:
        found.add(kept_secret(path, "--file"))

    def check() -> None:
        assert len(found) == 1

    return Round([keep] * 4, check)


def hidden() -> Round:
    numbers = itertools.count()
    places: list[str] = []

    def add() -> None:
        place = f"/stress/folder {next(numbers) % 64}"
        hide(place)
        places.append(place)

    def read() -> None:
        try:
            place = places[-1]
        except IndexError:
            return
        assert place not in public_text(f"cannot read {place}/model")

    def check() -> None:
        for place in set(places):
            assert place not in public_text(f"cannot read {place}/model")

    return Round([add, add, read], check)


def outbox() -> Round:
    shared, gauge = _Outbox(1000), _Gauge(1000)
    numbers, taken = itertools.count(), itertools.count()
    lock = threading.Lock()

    def put() -> None:
        with lock:
            number = next(numbers)
            assert shared.put(number.to_bytes(8, "big") * 4, 20.0)
        gauge.enter(32)

    def take() -> None:
        try:
            frame = next(shared)
        except StopIteration:
            time.sleep(0.001)
            return
        assert int.from_bytes(frame[:8], "big") == next(taken)
        gauge.leave(32)

    def wake() -> None:
        gauge.open()
        shared.close()

    return Round([put_or_closed(put), take, gauge.wait_below], wake=wake)


def put_or_closed(put: Callable[[], None]) -> Callable[[], None]:
    def guarded() -> None:
        try:
            put()
        except AssertionError:
            time.sleep(0.001)  # closed: the round is over

    return guarded


CASES = [
    Case("mailbox of a request", handle),
    Case("engine and admission", engine),
    Case("tokens and refusals", tokens),
    Case("kept secret", secret),
    Case("hidden folders", hidden),
    Case("queues of a stream", outbox),
]
