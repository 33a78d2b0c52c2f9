"""Callers that keep a server waiting: headers without a message, bodies byte by byte, streams that say nothing, replies
that nobody reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from colibri.grpc_options import channel_options
from colibri.rpc.places import Bounds
from colibri.rpc.server import build_server
from colibri.v1 import generation_pb2
from tests.support.attacked import OPTIONS, PORTS, WAIT_S, Port, port
from tests.support.pki import Pki
from tests.support.raw_http2 import RawHttp2
from tests.support.served import serve
from tests.support.tiny_engine import TinyModel
from tests.support.tries import Tries

#: UNAUTHENTICATED, PERMISSION_DENIED.
REFUSED = {16, 7}
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
SHORT = Bounds(message_s=1.0, reader_s=1.0, late_s=0.5)


@pytest.fixture(params=PORTS)
def target(
    request: pytest.FixtureRequest, pki: Pki, tiny: TinyModel, tiny_mixtral: Path, tmp_path: Path
) -> Iterator[Port]:
    with port(request.param, pki, tiny, tiny_mixtral, tmp_path, Bounds(late_s=0.5)) as found:
        yield found


@pytest.fixture
def short(pki: Pki, tiny: TinyModel, tiny_mixtral: Path, tmp_path: Path) -> Iterator[Port]:
    """`serve`, where a caller may keep the server waiting for a second."""
    with port("serve", pki, tiny, tiny_mixtral, tmp_path, SHORT) as found:
        yield found


def test_strangers_are_refused_by_their_headers(target: Port, tries: Tries) -> None:
    """400 calls without a message: each is told so, and holds nothing."""
    with target.stranger() as first, target.stranger() as second:
        for connection in (first, second):
            for turn in range(200):
                connection.open(target.methods[turn % len(target.methods)])
            connection.flush()
        for connection in (first, second):
            numbers = list(connection.streams)
            assert connection.until_ended(numbers, WAIT_S)
            assert {connection.streams[number].status for number in numbers} <= REFUSED
        target.honest(3)
        target.health()
    tries("headers without a message, no credentials", 400)


def test_health_answers_beside_callers_that_say_nothing(target: Port, tries: Tries) -> None:
    """Health asks for no credentials: whoever asks without saying what, or watches, makes room."""
    with ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(target.stranger())
            silent = [connection.open(CHECK if turn % 2 else WATCH) for turn in range(100)]
            trickling = [connection.open(CHECK) for _ in range(20)]
            watching = [connection.open(WATCH) for _ in range(60)]
            for number in trickling:
                connection.data(number, b"\0\0")
            for number in watching:
                connection.message(number, b"")
            connection.flush()
            target.health(3)
            target.honest()
            assert len(silent) + len(trickling) + len(watching) == 180
    tries("health: headers alone, trickled, watched", 360)


def test_a_caller_that_may_call_and_says_nothing_holds_up_nobody_else(target: Port, tries: Tries) -> None:
    """Somebody with credentials opens more calls than the server has places, and never sends a message."""
    with ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(target.acquaintance())
            for turn in range(150):
                method = target.methods[turn % len(target.methods)]
                connection.open(method, token=target.tokens[1])
            connection.flush()
            target.honest(3)
            target.health()
    tries("headers without a message, with credentials", 300)


def test_silent_streams_of_the_data_plane_make_room(
    pki: Pki, tiny: TinyModel, tiny_mixtral: Path, tmp_path: Path, tries: Tries
) -> None:
    """More streams than a worker takes, by somebody with a router's certificate, that never carry a frame."""
    exchange = "/colibri.v1.Expert/Exchange"
    with port("expert", pki, tiny, tiny_mixtral, tmp_path) as worker, worker.acquaintance() as silent:
        for _ in range(100):
            silent.open(exchange)
        silent.flush()
        silent.listen(0.5)
        with worker.acquaintance() as router:
            number = router.open(exchange)
            router.message(number, b"no frame at all", end=False)
            router.flush()
            assert router.until_ended([number], WAIT_S)
            # DATA_LOSS: it was read; not RESOURCE_EXHAUSTED.
            assert router.streams[number].status == 15
        worker.honest()
    tries("streams of the data plane that say nothing", 100)


def test_a_message_is_waited_for_within_a_bound(short: Port, tries: Tries) -> None:
    """No message at all, and one whose bytes come one by one."""
    with short.acquaintance() as connection:
        numbers = [connection.open(short.methods[0], token=short.tokens[1]) for _ in range(10)]
        until = time.monotonic() + WAIT_S
        while any(not connection.streams[number].ended for number in numbers):
            assert time.monotonic() < until, "the server still waits"
            for number in numbers[5:]:
                connection.data(number, b"\0")
            connection.flush()
            connection.listen(0.2)
        # Another call of this connection is served as ever.
        last = connection.open(f"{short.methods[0].rpartition('/')[0]}/ModelInfo", token=short.tokens[1])
        connection.message(last, b"")
        connection.flush()
        assert connection.until_ended([last], WAIT_S)
        assert connection.streams[last].status == 0
    tries("messages that never become whole", 10)


def test_no_message_at_all_is_told(short: Port) -> None:
    with short.acquaintance() as connection:
        number = connection.open(short.methods[1], token=short.tokens[1], end=True)
        connection.flush()
        assert connection.until_ended([number], WAIT_S)
        assert connection.streams[number].status == 3  # INVALID_ARGUMENT


def test_reflection_streams_that_say_nothing(tmp_path: Path, tries: Tries) -> None:
    server = build_server([], listen="127.0.0.1:0", max_calls=4, bounds=SHORT)
    server.start()
    try:
        with RawHttp2(server.target) as connection:
            numbers = [connection.open(REFLECTION) for _ in range(100)]
            connection.flush()
            with RawHttp2(server.target) as other:
                asked = other.open(REFLECTION)
                other.message(asked, b"\x3a\x00")  # list_services
                other.flush()
                assert other.until_ended([asked], WAIT_S)
                assert other.streams[asked].status == 0
                assert b"grpc.health.v1.Health" in other.streams[asked].data
            assert connection.until_ended(numbers, WAIT_S)
    finally:
        server.stop(0.0)
    tries("reflection streams that say nothing", 100)


def test_a_watcher_that_reads_nothing_does_not_hold_up_the_server(tmp_path: Path, tries: Tries) -> None:
    """A change of health is told to watchers by their own threads: the server goes on, and can stop."""
    server = build_server([], listen="127.0.0.1:0")
    server.start()
    with RawHttp2(server.target, window=0) as connection:
        for _ in range(8):
            connection.message(connection.open(WATCH), b"")
        connection.flush()
        with grpc.insecure_channel(server.target, options=channel_options()) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
            told = iter(watch)
            assert next(told).status == health_pb2.HealthCheckResponse.NOT_SERVING
            done = threading.Event()

            def change() -> None:
                for serving in (True, False, True):
                    server.set_serving(serving)
                done.set()

            threading.Thread(target=change, daemon=True).start()
            assert done.wait(WAIT_S)
            assert next(told).status == health_pb2.HealthCheckResponse.SERVING
        stopped = threading.Thread(target=server.stop, args=(0.0,), daemon=True)
        stopped.start()
        stopped.join(WAIT_S)
        assert not stopped.is_alive()
    tries("watchers that read nothing", 8)


def test_replies_that_nobody_reads_have_a_bound(
    pki: Pki, tiny: TinyModel, tmp_path: Path, tries: Tries
) -> None:
    """Answers, and replies of unary calls, whose caller grants no byte: they end, and others are served."""
    with serve(tiny, tmp_path, OPTIONS, listen="127.0.0.1:0", reader_timeout_s=1.0, bounds=SHORT) as served:
        ask = generation_pb2.GenerateRequest()
        ask.token_ids.ids.extend((5, 9, 42))
        ask.stopping.max_tokens = 8
        ask.stopping.ignore_eos = True
        with RawHttp2(served.target, window=0) as connection:
            numbers = []
            for _ in range(10):
                for method, message in (("Generate", ask.SerializeToString()), ("ModelInfo", b"")):
                    numbers.append(connection.open(f"/colibri.v1.Generation/{method}"))
                    connection.message(numbers[-1], message)
            connection.flush()
            assert served.client.generate([5, 9, 42], max_tokens=4, ignore_eos=True).answer().ids
            assert connection.until_ended(numbers, WAIT_S)
        assert served.client.generate([5, 9, 42], max_tokens=4, ignore_eos=True).answer().ids
    tries("replies that nobody reads", 20)


def test_threads_are_bounded_under_many_streams(short: Port, tries: Tries) -> None:
    with short.stranger() as stranger, short.acquaintance() as known:
        counts = []
        for _ in range(2):
            opened = []
            for connection, token in ((stranger, ""), (known, short.tokens[1])):
                numbers = [connection.open(short.methods[0], token=token) for _ in range(60)]
                numbers += [connection.open(CHECK) for _ in range(60)]
                connection.flush()
                opened.append((connection, numbers))
            for connection, numbers in opened:
                assert connection.until_ended(numbers, WAIT_S)
            counts.append(threading.active_count())
        assert counts[1] <= counts[0] + 8
    tries("streams in turn, threads counted", 480)
