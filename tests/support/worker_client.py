"""A worker, in a process of its own or inside this one, and a client that speaks frames to it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from colibri.expert_service.assembly import WorkerServer
from colibri.expert_service.config import WorkerConfig
from colibri.kernels.api import F32, U32, Array, UnitBatch
from colibri.models.checkpoint import Checkpoint
from colibri.transport.grpc_stream import GrpcStreamLink, open_channel
from colibri.v1 import expert_pb2, expert_pb2_grpc
from colibri.wire.chunks import Reassembler, message_frames
from colibri.wire.frame import Frame, read_frame, verify
from colibri.wire.header import Header
from colibri.wire.limits import FrameLimits
from tests.support.frames import forward

WAIT_S = 20.0


def limits_of(model: Path | str, mode: str, max_rows: int = 1024) -> FrameLimits:
    config = Checkpoint.open(model).config
    return FrameLimits(config.layers, config.experts, config.top_k, config.hidden, mode, max_rows)


def all_experts(limits: FrameLimits) -> list[expert_pb2.ExpertId]:
    return [
        expert_pb2.ExpertId(layer=layer, expert=expert)
        for layer in range(limits.layers)
        for expert in range(limits.experts)
    ]


class WorkerClient:
    """Control calls with a bound, and one link."""

    def __init__(self, target: str, limits: FrameLimits) -> None:
        self.target = target
        self.limits = limits
        self.channel = open_channel(target, limits.max_frame_bytes)
        self.stub: expert_pb2_grpc.ExpertStub = expert_pb2_grpc.ExpertStub(self.channel)
        self._links: list[GrpcStreamLink] = []
        self.link = self.open_link()
        self._partial = Reassembler(100, 1 << 30)

    def open_link(self) -> GrpcStreamLink:
        self._links.append(GrpcStreamLink(self.channel, "w0"))
        return self._links[-1]

    def close(self) -> None:
        for link in self._links:
            link.close()
        self.channel.close()

    def load(
        self, experts: list[expert_pb2.ExpertId] | None = None, epoch: int = 1
    ) -> list[expert_pb2.LoadProgress]:
        request = expert_pb2.LoadRequest(
            epoch=epoch, experts=all_experts(self.limits) if experts is None else experts
        )
        return list(self.stub.Load(request, timeout=60))

    def status(self) -> expert_pb2.StatusReply:
        return self.stub.Status(expert_pb2.StatusRequest(), timeout=WAIT_S)

    def health(self) -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S).status)

    def request(self, correlation_id: int, rows: int = 1, **changes: Any) -> Header:
        return forward(self.limits, correlation_id, rows, **changes)

    def send(self, header: Header, x: Array | None = None) -> None:
        """x: the rows; None: zeros."""
        for parts in message_frames(header, tensor_of(header, x, self.limits)):
            self.link.send(parts)

    def reply(self, link: GrpcStreamLink | None = None) -> Frame:
        """The next whole message."""
        while True:
            frame = read_frame(bytes((link or self.link).receive(WAIT_S)))
            verify(frame)
            whole = self._partial.add(frame)
            if whole is not None:
                return whole

    def call(self, header: Header, x: Array | None = None) -> Frame:
        self.send(header, x)
        return self.reply()


def tensor_of(header: Header, x: Array | None, limits: FrameLimits) -> memoryview:
    if x is None:
        return memoryview(bytes(header.rows * limits.row_bytes))
    return x.reshape(-1).view(np.uint8).data


def units_of(frame: Frame, limits: FrameLimits) -> F32:
    return np.frombuffer(frame.tensor, np.float32).reshape(-1, limits.hidden)


@dataclass
class Gate:
    """Computes zeros, but only as often as it is let through; keeps the rows it saw, in order."""

    open: threading.Semaphore
    entered: threading.Semaphore
    order: list[int]

    @classmethod
    def closed(cls) -> Gate:
        return cls(threading.Semaphore(0), threading.Semaphore(0), [])

    def run(self, layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        self.order.append(len(x))
        self.entered.release()
        if not self.open.acquire(timeout=WAIT_S):
            raise TimeoutError("the test never opened the gate")
        units = len(batch.unit_slots)
        return np.zeros((units, x.shape[1]), np.float32), np.zeros(units, np.uint32)

    def wait_entered(self) -> None:
        assert self.entered.acquire(timeout=WAIT_S)


@contextmanager
def worker_inside(
    config: WorkerConfig, run: Callable[[int, Array, UnitBatch], tuple[F32, U32]] | None = None
) -> Iterator[WorkerClient]:
    """A worker in this process, with `run` in place of what computes."""
    server = WorkerServer(config, run=run)
    server.start()
    client = WorkerClient(server.target, limits_of(config.model, config.compute_mode, config.max_rows))
    try:
        yield client
    finally:
        client.close()
        server.stop(1.0)


@dataclass
class WorkerProcess:
    process: subprocess.Popen[str]
    target: str
    pid: int

    def rss_bytes(self) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        (line,) = (line for line in text.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def cpu_seconds(self) -> float:
        """Of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def worker_process(model: Path, listen: str, *flags: str, mode: str = "fp32") -> Iterator[WorkerProcess]:
    """`colibri expert`, unpinned unless the flags say otherwise; killed at the end if it still runs."""
    process = subprocess.Popen(
        [
            sys.executable, "-P", "-m", "colibri.cli.main", "expert", str(model), f"--listen={listen}", "--name=w0",
            "--incarnation=7", "--json", f"--compute-mode={mode}", "--numa-node=-1", "--cpu-threads=1",
            *flags,
        ],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["incarnation"] > 0
        yield WorkerProcess(process, ready["target"], ready["pid"])
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def eventually(condition: Callable[[], bool], within_s: float = WAIT_S) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.005)


def failure(call: Callable[[], object]) -> grpc.RpcError:
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("the call did not fail")
