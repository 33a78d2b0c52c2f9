"""A worker whose weights lie on another node than its policy names says so, after a load and in Status."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import pytest

from colibri.expert_service.assembly import WorkerServer
from colibri.expert_service.config import WorkerConfig
from colibri.v1 import expert_pb2, expert_pb2_grpc


@pytest.mark.parametrize("node", [-1, 0, 1023])
def test_pages_are_compared_with_the_policy(
    tiny_mixtral: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, node: int
) -> None:
    """The process never settled: whatever the configuration says, pages lie where this machine has memory."""
    config = WorkerConfig(
        tiny_mixtral,
        "w7",
        f"unix:{tmp_path}/w.sock",
        "fp32",
        backend="reference",
        numa_node=node,
        crossing="told",
    )
    server = WorkerServer(config)
    server.start()
    try:
        with caplog.at_level(logging.WARNING), grpc.insecure_channel(server.target) as channel:
            stub = expert_pb2_grpc.ExpertStub(channel)
            wanted = [expert_pb2.ExpertId(layer=0, expert=0), expert_pb2.ExpertId(layer=2, expert=7)]
            assert list(stub.Load(expert_pb2.LoadRequest(epoch=1, experts=wanted), timeout=60))[-1].done
            status = stub.Status(expert_pb2.StatusRequest(), timeout=10)
    finally:
        server.stop(0.0)
    found = dict(status.weight_pages_by_node)
    assert sum(found.values()) > 0
    assert (status.numa_node, status.crossing) == (node, "told")
    warned = [record.getMessage() for record in caplog.records if "weights" in record.getMessage()]
    if node == 1023:
        (text,) = warned
        assert text.startswith("w7: weights: expected all pages on node 1023, got ")
        assert text.endswith(f" of {sum(count for at, count in found.items() if at >= 0)} sampled")
    elif node < 0 or set(found) <= {0, -1}:
        assert warned == []
