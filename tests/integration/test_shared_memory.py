"""A router and a worker process of one host share memory: by default, with the bits of gRPC, and with an end
to every wait."""

from __future__ import annotations

import logging
import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from colibri.deadline import Deadline
from colibri.errors import ColibriError, DeadlineExpired, FrameError, InvalidInput, WorkerLost
from colibri.expert_service import servicer
from colibri.kernels.api import Backend, ComputeMode
from colibri.kernels.factory import make_backend
from colibri.placement import Directory, Membership, WorkerEndpoint
from colibri.router_service import connections
from colibri.router_service.remote import RemoteExecutor
from colibri.router_service.router import MoeRouter
from colibri.rpc.status import from_rpc_error
from colibri.transport._shared_ring import SharedRing
from colibri.transport.grpc_stream import open_channel
from colibri.transport.host import host_id
from colibri.transport.link import LinkKind
from colibri.transport.shared_memory import LAYOUT, SharedMemoryLink
from colibri.v1 import expert_pb2
from colibri.wire.chunks import message_frames
from colibri.wire.frame import read_frame
from tests.support.expert_servers import MoeBench, membership_of
from tests.support.worker_client import WorkerClient, WorkerProcess, eventually, tensor_of, worker_process

#: Offsets in the memory (ring.h).
TAIL_OF_REQUESTS, HEAD_OF_REPLIES = 64, 64 + 256 + 64
INCARNATION = 7  # of worker_process


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    backend = make_backend("cpu", threads=1)
    yield backend
    backend.close()


@pytest.fixture
def bench(tiny_mixtral: Path, tmp_path: Path, backend: Backend) -> MoeBench:
    return MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path, backend=backend)


@pytest.fixture
def worker(bench: MoeBench) -> Iterator[WorkerProcess]:
    with worker_process(bench.model, f"unix:{bench.folder}/w0.sock") as process:
        client = WorkerClient(process.target, bench.limits)
        client.load()
        client.close()
        yield process


def one_worker(bench: MoeBench, target: str) -> Directory:
    return Directory(Membership(bench.spread(1), {"w0": WorkerEndpoint("w0", INCARNATION, target)}))


@contextmanager
def routed(
    bench: MoeBench, directory: Directory, kind: LinkKind | None = None
) -> Iterator[tuple[MoeRouter, Mapping[str, ColibriError]]]:
    """A router that is connected, and what failed of that. kind None: the default."""
    chosen: dict[str, Any] = {} if kind is None else {"link": kind}
    executor = RemoteExecutor(bench.identity(), bench.limits, directory, **chosen)
    try:
        yield bench.router(directory, executor), executor.connect()
    finally:
        executor.close()


@contextmanager
def attached(worker: WorkerProcess, bench: MoeBench) -> Iterator[SharedMemoryLink]:
    channel = open_channel(worker.target, bench.limits.max_frame_bytes)
    try:
        link = SharedMemoryLink(channel, "w0", host_id(), 10.0)
        yield link
        link.close()
    finally:
        channel.close()


def shares_memory(pid: int | str = "self") -> bool:
    return "memfd:colibri-ring" in Path(f"/proc/{pid}/maps").read_text()


def stop(pid: int) -> None:
    """SIGSTOP; returns once every thread has stopped."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    eventually(
        lambda: all(
            (task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir()
        )
    )


def test_a_worker_of_this_host_shares_memory_unless_told_otherwise(
    bench: MoeBench, worker: WorkerProcess
) -> None:
    x = bench.rows(np.random.default_rng(), 33)
    expected = [bench.local().forward(layer, x).rows for layer in range(bench.layers)]
    for kind, shared in ((None, True), (LinkKind.SHARED_MEMORY, True), (LinkKind.GRPC, False)):
        with routed(bench, one_worker(bench, worker.target), kind) as (router, failed):
            assert failed == {}
            for layer in range(bench.layers):
                result = router.forward(layer, x)
                assert result.failed == {}
                assert result.rows.tobytes() == expected[layer].tobytes()
            assert shares_memory() is shared
            assert shares_memory(worker.pid) is shared
        eventually(lambda: not shares_memory() and not shares_memory(worker.pid))


def test_auto_falls_back_to_grpc_when_attach_is_refused(
    bench: MoeBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(servicer, "LAYOUT", 99)  # a worker of another build
    x = bench.rows(np.random.default_rng(), 5)
    with bench.worker("w0") as server, caplog.at_level(logging.WARNING):
        directory = Directory(membership_of(bench.spread(1), server))
        with routed(bench, directory) as (router, failed):
            assert failed == {}
            result = router.forward(0, x)
            assert result.failed == {}
            assert result.rows.tobytes() == bench.local().forward(0, x).rows.tobytes()
            assert not shares_memory()
        assert "w0: no shared memory, so frames go through gRPC: layout: expected 99, got 1" in caplog.text
        with routed(bench, directory, LinkKind.SHARED_MEMORY) as (_, failed):
            assert isinstance(failed["w0"], InvalidInput)
            assert failed["w0"].peer == "w0"


def test_a_router_of_another_host_goes_through_grpc(
    bench: MoeBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "host_id", lambda: "another host")
    x = bench.rows(np.random.default_rng(), 5)
    with bench.worker("w0") as server, caplog.at_level(logging.WARNING):
        directory = Directory(membership_of(bench.spread(1), server))
        with routed(bench, directory) as (router, failed):
            assert failed == {}
            result = router.forward(0, x)
            assert result.rows.tobytes() == bench.local().forward(0, x).rows.tobytes()
            assert not shares_memory()
        assert caplog.text == ""  # it is not even tried
        with routed(bench, directory, LinkKind.SHARED_MEMORY) as (_, failed):
            assert isinstance(failed["w0"], InvalidInput)
            assert "host: expected the host of this worker, got another host" in failed["w0"].message


def test_a_killed_worker_ends_a_waiting_receive_within_a_second(
    bench: MoeBench, worker: WorkerProcess
) -> None:
    killed: list[float] = []

    def kill() -> None:
        killed.append(time.monotonic())
        os.kill(worker.pid, signal.SIGKILL)

    with attached(worker, bench) as link:
        timer = threading.Timer(0.3, kill)
        timer.start()
        with pytest.raises(WorkerLost, match=r"w0: stream lost: UNAVAILABLE") as caught:
            link.receive(20.0)
        assert time.monotonic() - killed[0] < 30.0
        assert (caught.value.peer, caught.value.retryable) == ("w0", True)
        with pytest.raises(WorkerLost, match="w0: stream lost"):
            link.send((b"x",))
        timer.join()


def test_a_stopped_worker_ends_in_the_deadline_and_may_go_on(bench: MoeBench, worker: WorkerProcess) -> None:
    x = bench.rows(np.random.default_rng(), 4)
    with routed(bench, one_worker(bench, worker.target)) as (router, failed):
        assert failed == {}
        assert shares_memory()
        stop(worker.pid)
        try:
            begin = time.monotonic()
            result = router.forward(0, x, Deadline.after(0.5))
            assert 0.4 < time.monotonic() - begin < 30.0
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        assert sorted(result.failed) == [0, 1, 2, 3]
        for error in result.failed.values():
            assert isinstance(error, DeadlineExpired)
            assert error.peer == "w0"
        result = router.forward(0, x)
        assert result.failed == {}
        assert result.rows.tobytes() == bench.local().forward(0, x).rows.tobytes()


def test_a_stopped_worker_is_not_attached_within_the_bound(bench: MoeBench, worker: WorkerProcess) -> None:
    client = WorkerClient(worker.target, bench.limits)
    client.status()
    stop(worker.pid)
    try:
        begin = time.monotonic()
        with pytest.raises(WorkerLost, match=r"w0: not attached within 0.3 s") as caught:
            SharedMemoryLink(client.channel, "w0", host_id(), 0.3)
        assert time.monotonic() - begin < 30.0
        assert (caught.value.peer, caught.value.retryable) == ("w0", True)
    finally:
        os.kill(worker.pid, signal.SIGCONT)
        client.close()


def test_many_attachments_leave_the_worker_as_it_was(bench: MoeBench, worker: WorkerProcess) -> None:
    client = WorkerClient(worker.target, bench.limits)

    def cycle(number: int) -> None:
        link = SharedMemoryLink(client.channel, "w0", host_id(), 10.0)
        header = client.request(number + 1, incarnation=INCARNATION)
        for parts in message_frames(header, tensor_of(header, None, bench.limits)):
            link.send(parts)
        reply = read_frame(bytes(link.receive(10.0))).header
        assert (reply.kind, reply.correlation_id) == (expert_pb2.FRAME_KIND_RESULT, number + 1)
        link.close()

    def facts() -> tuple[int, int]:
        status = client.status()
        return status.open_fds, status.threads

    try:
        for number in range(20):
            cycle(number)
        eventually(lambda: not shares_memory(worker.pid))
        fds, threads = facts()
        for number in range(20, 120):
            cycle(number)
        eventually(lambda: not shares_memory(worker.pid))
        # Grpc's pools grow and shrink by a thread or two; a thread per attachment would be a hundred.
        eventually(lambda: not np.greater(facts(), (fds, threads + 4)).any())
    finally:
        client.close()
    eventually(lambda: not shares_memory())


@pytest.mark.parametrize(
    "word", [TAIL_OF_REQUESTS, HEAD_OF_REPLIES], ids=["tail of the requests", "head of the replies"]
)
def test_a_router_that_writes_nonsense_loses_its_link_and_no_other(
    bench: MoeBench, worker: WorkerProcess, word: int
) -> None:
    client = WorkerClient(worker.target, bench.limits)
    x = bench.rows(np.random.default_rng(), 3)
    try:
        call = client.stub.Attach(expert_pb2.AttachRequest(host=host_id(), layout=LAYOUT), timeout=20)
        offer = next(call)
        path = f"/proc/{offer.pid}/fd/{offer.fd}"
        ring = SharedRing.open(path, offer.token)
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            struct.pack_into("<Q", memory, word, 1 << 40)
        if word == HEAD_OF_REPLIES:  # met with the first reply
            for parts in message_frames(client.request(1, incarnation=INCARNATION), bytes(bench.hidden * 4)):
                ring.write(parts, 1.0)
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        assert isinstance(from_rpc_error(caught.value, "w0"), FrameError)
        with routed(bench, one_worker(bench, worker.target), LinkKind.SHARED_MEMORY) as (router, failed):
            assert failed == {}
            assert router.forward(0, x).rows.tobytes() == bench.local().forward(0, x).rows.tobytes()
    finally:
        client.close()
