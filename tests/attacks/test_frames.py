"""Frames that a router could have forged, against a real worker: each field in turn holds what it must not,
bytes are cut and turned, lists are long. The worker refuses or answers, and goes on."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from colibri.transport.grpc_stream import EXCHANGE_METHOD
from colibri.v1 import expert_pb2
from colibri.wire.frame import read_frame, write_frame
from colibri.wire.header import FIELDS, LIST_FIELDS, Header
from tests.support.frames import U64_FIELDS, forward
from tests.support.tries import Tries
from tests.support.worker_client import WAIT_S, WorkerClient, WorkerProcess, limits_of, worker_process

MAX_U32, MAX_U64 = (1 << 32) - 1, (1 << 64) - 1
ENUMS = frozenset(("kind", "compute_mode", "wire_dtype", "retry"))
ROUNDS, LONG_ROUNDS = 2, 60


class Worker:
    def __init__(self, process: WorkerProcess, client: WorkerClient) -> None:
        self.process, self.client, self.limits = process, client, client.limits
        self.good = self.ask()

    def ask(self) -> bytes:
        """The answer to the good frame."""
        return bytes(self.client.call(forward(self.limits, 1, 2)).tensor)

    def throw(self, *frames: bytes) -> list[int]:
        """Kinds of the answers, until one that ends a message or the stream's end."""
        kinds: list[int] = []
        exchange: Any = self.client.channel.stream_stream(EXCHANGE_METHOD)
        with contextlib.suppress(grpc.RpcError):
            for answer in exchange(iter(frames), timeout=WAIT_S):
                kinds.append(read_frame(answer).header.kind)
        return kinds

    def harm(self) -> str:
        """Empty where it answers the good frame as before and its queue is empty."""
        if self.ask() != self.good:
            return "the good frame has another answer"
        return "" if not self.client.status().queued else "something waits in its queue"


@pytest.fixture(scope="module")
def worker(tiny_mixtral: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("frames")
    with worker_process(tiny_mixtral, f"unix:{folder}/w.sock") as process:
        client = WorkerClient(process.target, limits_of(tiny_mixtral, "fp32"))
        try:
            client.load()
            yield Worker(process, client)
        finally:
            client.close()


def wrong_values(name: str, header: Header, draw: random.Random) -> list[object]:
    value = getattr(header, name)
    if name in LIST_FIELDS:
        dtype, size = value.dtype, len(value)
        if dtype == np.float32:
            odd = [np.nan, np.inf, -np.inf, 3.4e38, 1e-45]
            lists = [np.full(size, each, dtype) for each in odd]
        else:
            lists = [np.full(size, each, dtype) for each in (0, 1 << 31, MAX_U32, draw.getrandbits(32))]
        return [
            *lists,
            value[:-1],
            np.repeat(value, 2),
            np.resize(value, 100_000),
            value[::-1].copy(),
            value[:0],
        ]
    if name == "trace_id":
        return [b"x", bytes(15), bytes(17), bytes(100_000)]
    if name == "error_message":
        return ["x" * 100_000, "\x1b[2J\n"]
    if name == "last_chunk":
        return [False]
    top = MAX_U64 if name in U64_FIELDS else (1 << 31) - 1 if name in ENUMS else MAX_U32
    around = [value + 1, max(0, value - 1), 0]
    return [*around, top, top - 1, top // 2 + 1, (1 << 24) + 1, draw.randrange(top)]


def forged(worker: Worker, rounds: int) -> int:
    """Each field in turn, each message on a stream of its own."""
    count, draw = 0, random.Random()
    tensor = bytes(2 * worker.limits.row_bytes)
    for _ in range(rounds):
        for name in FIELDS:
            if name == "crc32c":
                continue
            for value in wrong_values(name, forward(worker.limits), draw):
                header = forward(worker.limits, 5, 2)
                before = getattr(header, name)
                setattr(header, name, value)
                kinds = worker.throw(b"".join(bytes(part) for part in write_frame(header, tensor)))
                # A result for a field that decides what is computed: it was not looked at.
                taken = expert_pb2.FRAME_KIND_RESULT in kinds
                same = np.array_equal(before, value) if name in LIST_FIELDS else before == value  # type: ignore[arg-type]
                if (
                    name in ("rows", "hidden", "units", "total_bytes", "compute_mode", "wire_dtype", "kind")
                    and not same
                ):
                    assert not taken, f"{name}: {value!r} was taken"
                count += 1
        assert worker.harm() == ""
    return count


def mangled(worker: Worker, rounds: int) -> int:
    """Bytes of good frames cut, turned, doubled, in pieces of lying numbers."""
    draw, count = random.Random(), 0
    tensor = bytes(2 * worker.limits.row_bytes)
    good = b"".join(bytes(part) for part in write_frame(forward(worker.limits, 5, 2), tensor))
    for _ in range(rounds):
        for _ in range(40):
            data = bytearray(good)
            for _ in range(draw.randrange(1, 5)):
                data[draw.randrange(min(len(data), 300))] = draw.randrange(256)
            worker.throw(bytes(data[: draw.randrange(len(data))] if draw.random() < 0.3 else data))
            count += 1
        pieces = []
        for _ in range(20):
            piece = Header(
                correlation_id=draw.randrange(3),
                chunk_index=draw.randrange(4),
                last_chunk=draw.random() < 0.5,
            )
            if not piece.chunk_index:
                piece = forward(worker.limits, draw.randrange(3), 2, last_chunk=draw.random() < 0.5)
            body = bytes(draw.randrange(2 * worker.limits.row_bytes))
            pieces.append(b"".join(bytes(part) for part in write_frame(piece, body)))
        worker.throw(*pieces)
        count += len(pieces)
        assert worker.harm() == ""
    return count


def test_every_field_forged(worker: Worker, tries: Tries) -> None:
    """CVE-2024-42477 and its kind: no number of a peer's is used as a size or a place before it is checked."""
    tries("forged fields of frames", forged(worker, ROUNDS))


def test_bytes_mangled(worker: Worker, tries: Tries) -> None:
    tries("mangled frames", mangled(worker, ROUNDS))


@pytest.mark.attacks
def test_for_long(worker: Worker, tries: Tries) -> None:
    before = worker.process.rss_bytes()
    tries("forged fields of frames", forged(worker, LONG_ROUNDS))
    tries("mangled frames", mangled(worker, LONG_ROUNDS))
    assert worker.process.rss_bytes() - before < 64 << 20


def test_epochs_and_lives_of_the_past_and_the_future(worker: Worker, tries: Tries) -> None:
    """A frame for another life is refused; one of an epoch that is to come is none of the past, and changes nothing."""
    tensor, count = bytes(2 * worker.limits.row_bytes), 0
    for incarnation in (1, 6, 8, MAX_U32, MAX_U64):
        header = forward(worker.limits, 5, 2, incarnation=incarnation)
        kinds = worker.throw(b"".join(bytes(part) for part in write_frame(header, tensor)))
        assert kinds == [expert_pb2.FRAME_KIND_STALE_EPOCH]
        count += 1
    oldest = worker.client.status().epoch_min
    for epoch in (2, 1 << 20, 1 << 40, MAX_U64):
        header = forward(worker.limits, 5, 2, epoch=epoch)
        worker.throw(b"".join(bytes(part) for part in write_frame(header, tensor)))
        count += 1
    assert worker.client.status().epoch_min == oldest
    assert worker.harm() == ""
    tries("epochs and lives forged", count)
