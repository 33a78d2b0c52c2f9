"""A process that watches a server: `python -m benchmarks.hardening.watcher TARGET`, until its stdin closes.

Then it prints one JSON object: health and gaps, each a list of [monotonic seconds, seconds]: how long a health check
took, and between two tokens of a stream (streams follow one another).
"""

from __future__ import annotations

import json
import sys
import threading
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from colibri.client import Client
from colibri.generation import Tokens
from colibri.grpc_options import channel_options

_PAUSE_S = 0.02
_WAIT_S = 60.0
_TOKENS = 2000


def main() -> None:
    target = sys.argv[1]
    over = threading.Event()
    health: list[tuple[float, float]] = []
    gaps: list[tuple[float, float]] = []
    threads = [
        threading.Thread(target=_check, args=(target, over, health)),
        threading.Thread(target=_stream, args=(target, over, gaps)),
    ]
    for thread in threads:
        thread.start()
    print("watching", flush=True)
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join(_WAIT_S)
    print(json.dumps({"health": health, "gaps": gaps}))


def _check(target: str, over: threading.Event, took: list[tuple[float, float]]) -> None:
    with grpc.insecure_channel(target, options=channel_options()) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while not over.wait(_PAUSE_S):
            begun = time.monotonic()
            stub.Check(health_pb2.HealthCheckRequest(), timeout=_WAIT_S)
            took.append((begun, time.monotonic() - begun))


def _stream(target: str, over: threading.Event, gaps: list[tuple[float, float]]) -> None:
    with Client(target) as client:
        while not over.is_set():
            last: float | None = None
            for event in client.generate([1, 2, 3], max_tokens=_TOKENS, ignore_eos=True):
                if over.is_set():
                    break
                if isinstance(event, Tokens):
                    now = time.monotonic()
                    if last is not None:
                        gaps.append((last, now - last))
                    last = now


if __name__ == "__main__":
    main()
