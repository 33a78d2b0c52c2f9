"""Peers that misbehave below the level of requests: they vanish, do not read, cancel by the thousand, or speak no
gRPC at all."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from colibri.errors import Code
from colibri.grpc_options import channel_options
from colibri.v1 import generation_pb2 as gp
from colibri.v1 import generation_pb2_grpc
from tests.integration.bad_input.live import WAIT_S, Live

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: First bytes of connections that are no gRPC.
JUNK = {
    "nothing": b"",
    "a byte": b"\0",
    "HTTP/1.1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100f0010000ec0303") + bytes(200),
    "half a preface": _PREFACE[:10],
    "a preface alone": _PREFACE,
    "a frame of 16 MiB": _PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
    "settings that never end": _PREFACE
    + (b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" + b"\x00\x03\x00\x00\x00\x64") * 999,
    "headers that never end": _PREFACE
    + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    + b"\x00\x40\x00\x01\x00\x00\x00\x00\x01",
    "noise": bytes(range(256)) * 64,
}


def long_request(request_id: str = "", max_tokens: int = 480, **fields: Any) -> gp.GenerateRequest:
    """An answer that takes a while."""
    request = gp.GenerateRequest(request_id=request_id, **fields)
    request.token_ids.ids.extend((5, 9, 42))
    request.stopping.max_tokens = max_tokens
    request.stopping.ignore_eos = True
    return request


def receipts(stream: Iterator[gp.GenerateReply]) -> list[int]:
    return [receipt for reply in stream for receipt in reply.tokens.receipts]


def first_tokens(stream: Iterator[gp.GenerateReply]) -> list[int]:
    """Reads until tokens have come; their receipts."""
    for reply in stream:
        if reply.tokens.ids:
            return list(reply.tokens.receipts)
    raise AssertionError("the answer ended without tokens")


def junk(live: Live, count: int) -> None:
    """Connections that say junk, `count` of each kind; half of them close at once, half wait for the answer's end."""
    host, _, port = live.serve.target.rpartition(":")
    for (_, data), turn in itertools.product(JUNK.items(), range(count)):
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5.0) as peer:
            peer.sendall(data)
            if turn % 2 and data:
                peer.settimeout(0.05)
                peer.recv(1 << 16)


def cancelled(live: Live, count: int, at_once: int = 16) -> None:
    """Answers that are begun and cancelled: before anything came, after Accepted, or after a few tokens in turn."""
    numbers = iter(range(count))
    lock = threading.Lock()
    failures: list[BaseException] = []

    def some() -> None:
        try:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                stream = live.stub.Generate(long_request(), timeout=WAIT_S)
                try:
                    for _ in range(number % 3):
                        next(stream)
                except grpc.RpcError as error:
                    # The queue is bounded: refused with advice, and this peer goes on at once.
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                stream.cancel()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=some) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    if failures:
        raise failures[0]


def until_idle(live: Live, within_s: float = WAIT_S) -> float:
    """Seconds until the server has room for as many answers at once as it may run, which means that it is rid of all
    others."""
    begun = time.monotonic()
    while True:
        streams = [live.stub.Generate(long_request(max_tokens=1), timeout=WAIT_S) for _ in range(16)]
        try:
            for stream in streams:
                receipts(stream)
            return time.monotonic() - begun
        except grpc.RpcError:
            if time.monotonic() - begun > within_s:
                raise
            time.sleep(0.05)


@contextlib.contextmanager
def slow_readers(live: Live, count: int) -> Iterator[list[Iterator[gp.GenerateReply]]]:
    """Answers whose readers took the first event and stopped; each has its own connection, a small window, and
    log-probabilities to fill it."""
    options = [*channel_options(), ("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    with contextlib.ExitStack() as stack:
        streams: list[Iterator[gp.GenerateReply]] = []
        for _ in range(count):
            channel = stack.enter_context(grpc.insecure_channel(live.serve.target, options=options))
            stub: generation_pb2_grpc.GenerationStub = generation_pb2_grpc.GenerationStub(channel)
            streams.append(stub.Generate(long_request(logprobs=20), timeout=WAIT_S))
            next(streams[-1])
        yield streams


_CLIENT = """
import sys
import grpc
from colibri.v1 import generation_pb2 as gp, generation_pb2_grpc
request = gp.GenerateRequest.FromString(bytes.fromhex(sys.argv[2]))
with grpc.insecure_channel(sys.argv[1]) as channel:
    for reply in generation_pb2_grpc.GenerationStub(channel).Generate(request, timeout=60):
        if reply.tokens.ids:
            print("tokens", flush=True)
"""


def killed_client(live: Live, request_id: str) -> None:
    """A process that reads 16 choices and is killed in the middle of them: its connection breaks without a word."""
    request = long_request(request_id, n=16).SerializeToString().hex()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _CLIENT, live.serve.target, request], stdout=subprocess.PIPE, text=True
    )
    try:
        if process.stdout is None or process.stdout.readline() != "tokens\n":
            raise RuntimeError("the client got no tokens")
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def is_running(live: Live, request_id: str) -> bool:
    """Whether the server still computes it: then it takes no other request of that id."""
    request = long_request(request_id, max_tokens=1).SerializeToString()
    code = live.call("/colibri.v1.Generation/Generate", request).code
    if code not in (None, Code.ALREADY_EXISTS):
        raise RuntimeError(f"expected an answer or ALREADY_EXISTS, got {code}")
    return code is Code.ALREADY_EXISTS


def seconds_to_run_out(live: Live, request_id: str) -> float:
    """Until the server is rid of a request whose client has gone."""
    begun = time.monotonic()
    while is_running(live, request_id):
        if time.monotonic() - begun > WAIT_S:
            raise RuntimeError(f"{request_id} still runs after {WAIT_S:g} s")
        time.sleep(0.005)
    return time.monotonic() - begun


def seconds_of_all_choices(live: Live) -> float:
    """Of the answer that `killed_client` begins, when it is read to its end."""
    begun = time.monotonic()
    receipts(live.stub.Generate(long_request(n=16), timeout=WAIT_S))
    return time.monotonic() - begun


def threads_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
