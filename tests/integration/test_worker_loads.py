"""Loads of a real worker process: beside requests, within a budget, warmed up; what it says that it holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from colibri.errors import InvalidInput, OverBudget
from colibri.expert_service.store import WeightStore
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from colibri.models.checkpoint import Checkpoint
from colibri.rpc.status import from_rpc_error
from colibri.transport.host import host_id
from colibri.transport.shared_memory import LAYOUT
from colibri.v1 import expert_pb2
from colibri.wire.protocol import PROTOCOL_MAX, PROTOCOL_MIN
from tests.support.worker_client import WAIT_S, WorkerClient, failure, limits_of, worker_process


@contextmanager
def running(model: Path, folder: Path, *options: str) -> Iterator[WorkerClient]:
    with worker_process(model, f"unix:{folder}/w.sock", *options) as worker:
        client = WorkerClient(worker.target, limits_of(model, "fp32"))
        try:
            yield client
        finally:
            client.close()


def held(client: WorkerClient) -> list[tuple[int, int]]:
    status = client.stub.Status(expert_pb2.StatusRequest(experts=True), timeout=WAIT_S)
    return [(item.layer, item.expert) for item in status.held]


def load(
    client: WorkerClient, *keys: tuple[int, int], yielding: bool = False
) -> list[expert_pb2.LoadProgress]:
    ids = [expert_pb2.ExpertId(layer=layer, expert=expert) for layer, expert in keys]
    return list(client.stub.Load(expert_pb2.LoadRequest(epoch=1, experts=ids, yielding=yielding), timeout=60))


@pytest.mark.parametrize("options", [(), ("--yielding-start",), ("--backend=reference", "--cpu-threads=1")])
def test_a_yielding_load_loads_the_same(tiny_mixtral: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    with running(tiny_mixtral, tmp_path, *options) as client:
        assert held(client) == []
        assert client.stub.Status(expert_pb2.StatusRequest(), timeout=WAIT_S).held == []
        load(client, (0, 0), (0, 7))
        first = client.call(client.request(1))
        steps = load(client, (0, 0), (0, 1), (1, 4), yielding=True)
        assert [step.experts_done for step in steps] == [0, 1, 2, 3]
        assert [step.done for step in steps] == [False] * 3 + [True]
        assert held(client) == [(0, 0), (0, 1), (0, 7), (1, 4)]
        again = client.call(client.request(2))
        assert again.header.kind == first.header.kind == expert_pb2.FRAME_KIND_RESULT
        assert bytes(again.tensor) == bytes(first.tensor)
        # Warming up is no request.
        assert client.status().requests_done == 2
        assert client.status().oldest_queued_us == 0


@pytest.mark.parametrize("yielding", [False, True])
def test_what_exceeds_the_memory_is_refused_with_both_figures(
    tiny_mixtral: Path, tmp_path: Path, yielding: bool
) -> None:
    checkpoint = Checkpoint.open(tiny_mixtral)
    one = WeightStore(checkpoint, make_backend("reference"), ComputeMode.FP32).expert_bytes
    with running(tiny_mixtral, tmp_path, f"--memory={2 * one}") as client:
        load(client, (0, 0), yielding=yielding)
        error = from_rpc_error(failure(lambda: load(client, (0, 1), (0, 2), yielding=yielding)), "w0")
        assert isinstance(error, OverBudget)
        assert f"at most {2 * one} bytes" in error.message
        assert f"makes {3 * one}" in error.message
        assert not error.retryable
        assert held(client) == [(0, 0)]
        load(client, (0, 2), yielding=yielding)
        assert held(client) == [(0, 0), (0, 2)]


def test_a_worker_may_keep_its_memory_to_itself(tiny_mixtral: Path, tmp_path: Path) -> None:
    with running(tiny_mixtral, tmp_path, "--no-shared-memory") as client:
        request = expert_pb2.HandshakeRequest(
            protocol_min=PROTOCOL_MIN,
            protocol_max=PROTOCOL_MAX,
            model_hash=Checkpoint.open(tiny_mixtral).model_hash(),
            expert_numerics_id=client.status().expert_numerics_id,
        )
        assert client.stub.Handshake(request, timeout=WAIT_S).host == ""
        attach = expert_pb2.AttachRequest(host=host_id(), layout=LAYOUT)
        error = from_rpc_error(failure(lambda: list(client.stub.Attach(attach, timeout=WAIT_S))), "w0")
        assert isinstance(error, InvalidInput)
        assert "shares no memory" in error.message
