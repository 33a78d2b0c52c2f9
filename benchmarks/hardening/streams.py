"""Streams that keep a server waiting: 1,000 of them over 10 connections, by strangers, against `colibri serve` with TLS
and tokens.

`python -m benchmarks.hardening.streams TARGET CA SECONDS` is the attacker, a process of its own.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.table import Line, Outcome
from colibri.client import ChannelSecurity, Client
from colibri.grpc_options import channel_options
from tests.integration.bad_input.connections import threads_of
from tests.integration.bad_input.folders import good
from tests.integration.bad_input.live import rss_of
from tests.support.pki import Pki, new_token
from tests.support.raw_http2 import RawHttp2
from tests.support.serving import serving

CONNECTIONS, STREAMS = 10, 100
SECONDS = 60.0
QUIET_S, WARM_S = 30.0, 10.0
#: Until what was kept for the attackers is gone.
SETTLE_S = 12.0
CALLERS = 2
HEALTH_S = 0.2
MEMORY_BYTES = 16 << 20
THREADS = 4
#: A stream that the server ended is opened again so soon.
AGAIN_S = 1.0
GENERATE = "/colibri.v1.Generation/Generate"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"


def attack(target: str, ca: Path, seconds: float) -> dict[str, int]:
    """Keeps all streams open: a third of headers alone, a third trickled, a third idle; what became of them."""
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        connections = [stack.enter_context(RawHttp2(target, ca)) for _ in range(CONNECTIONS)]
        kinds: Iterator[str] = itertools.cycle(("headers", "trickled", "idle"))
        alive: list[dict[int, str]] = [{} for _ in connections]
        due = [[(0.0, next(kinds)) for _ in range(STREAMS)] for _ in connections]
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            for connection, streams, waiting in zip(connections, alive, due, strict=True):
                for number in [each for each in streams if connection.streams[each].ended]:
                    counts[f"status {connection.streams.pop(number).status}"] += 1
                    waiting.append((now + AGAIN_S, streams.pop(number)))
                for when, kind in [each for each in waiting if each[0] <= now]:
                    waiting.remove((when, kind))
                    streams[_open(connection, kind, counts["opened"])] = kind
                    counts["opened"] += 1
                for number, kind in streams.items():
                    if kind == "trickled":
                        connection.data(number, b"\0")
                connection.flush()
                connection.listen(0.01)
            time.sleep(max(0.0, 0.2 - (time.monotonic() - now)))
        counts["open at the end"] = sum(map(len, alive))
        counts["connections lost"] = sum(connection.gone for connection in connections)
    return dict(counts)


def _open(connection: RawHttp2, kind: str, turn: int) -> int:
    """Every second one asks for health, which wants no credentials."""
    if kind == "idle":
        number = connection.open(WATCH if turn % 2 else GENERATE)
        connection.message(number, b"")
        return number
    return connection.open(CHECK if turn % 2 else GENERATE)


class _Measured:
    """Seconds of each call of each kind, and what failed, from threads that call until told to stop."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {"answer": [], "health": [], "watch": []}
        self.failures: list[str] = []
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []

    def repeat(self, kind: str, call: Callable[[], object], pause_s: float) -> None:
        def run() -> None:
            while not self._end.is_set():
                begun = time.monotonic()
                try:
                    call()
                except Exception as error:
                    self.failures.append(f"{kind}: {error}")
                self.seconds[kind].append(time.monotonic() - begun)
                self._end.wait(pause_s)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(60)


def _measure(target: str, shown: ChannelSecurity, ca: Path, seconds: float) -> _Measured:
    found = _Measured()
    with ExitStack() as stack:
        for _ in range(CALLERS):
            client = stack.enter_context(Client(target, timeout_s=30.0, security=shown))
            found.repeat("answer", partial(_answer, client), 0.0)
        channel = stack.enter_context(ChannelSecurity(tls_ca=ca).open(target, channel_options()))
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()

        def watch() -> None:
            call = health.Watch(request, timeout=10)
            next(iter(call))
            call.cancel()

        found.repeat("health", lambda: health.Check(request, timeout=10), 0.1)
        found.repeat("watch", watch, 0.1)
        time.sleep(seconds)
        found.stop()
    return found


def _answer(client: Client) -> object:
    return client.generate([5, 9, 42], max_tokens=24, ignore_eos=True).answer()


def _attacked(
    target: str, shown: ChannelSecurity, ca: Path, seconds: float
) -> tuple[_Measured, dict[str, int]]:
    # Attackers have CPUs of their own: on this machine theirs is a lower priority.
    command = [sys.executable, "-m", "benchmarks.hardening.streams", target, str(ca), str(seconds)]
    child = subprocess.Popen(["nice", "-n", "10", *command], stdout=subprocess.PIPE, text=True)
    try:
        found = _measure(target, shown, ca, seconds)
        out, _ = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait(10)
    return found, json.loads(out)


def measure() -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pki = Pki.make(folder / "certs")
        tokens, own = new_token(folder, "alice")
        options = [
            f"--tls-cert={pki.cert('coordinator')}",
            f"--tls-key={pki.key('coordinator')}",
            f"--tokens={tokens}",
            "--workers=1",
            "--rebalance=off",
            "--kv-tokens=8192",
        ]
        with serving(good(folder / "model"), folder, *options) as server:
            target, pid, shown = server.target, server.process.pid, pki.shows(token_file=own)
            _attacked(target, shown, pki.ca, WARM_S)
            time.sleep(SETTLE_S)
            quiet = _measure(target, shown, pki.ca, QUIET_S)
            threads, memory = threads_of(pid), rss_of(pid)
            found, tried = _attacked(target, shown, pki.ca, SECONDS)
            time.sleep(SETTLE_S)
            more_threads, more_memory = threads_of(pid) - threads, rss_of(pid) - memory
    before, after = _p99(quiet.seconds["answer"]), _p99(found.seconds["answer"])
    checks = found.seconds["health"] + found.seconds["watch"]
    health = max(checks)
    return Outcome(
        f"{tried['opened']} streams tried; {len(found.failures)} of {len(found.seconds['answer'])} answers failed, p99 "
        f"{after * 1000:.0f} ms, {after / before:.2f}x quiet; health at most {health * 1000:.0f} ms "
        f"(p99 {_p99(checks) * 1000:.0f} ms); {more_threads:+d} "
        f"threads, {more_memory / 2**20:+.1f} MiB",
        not found.failures
        and after <= 2 * before
        and health <= HEALTH_S
        and more_threads <= THREADS
        and more_memory <= MEMORY_BYTES,
        f"quiet: p99 {before * 1000:.0f} ms, health at most "
        f"{max(quiet.seconds['health'] + quiet.seconds['watch']) * 1000:.0f} ms",
        {
            "attack": tried,
            "failures": found.failures[:20],
            "median_quiet_s": statistics.median(quiet.seconds["answer"]),
            "median_s": statistics.median(found.seconds["answer"]),
        },
    )


def _p99(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.99)]


def lines() -> list[Line]:
    return [
        Line(
            "streams",
            f"{CONNECTIONS * STREAMS} header-only, trickled or idle streams over {CONNECTIONS} connections, no token, "
            f"TLS, {SECONDS:g} s",
            f"0 failures, p99 at most 2x quiet; health at most {HEALTH_S:g} s; threads, memory flat after",
            measure,
        )
    ]


if __name__ == "__main__":
    print(json.dumps(attack(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))))
