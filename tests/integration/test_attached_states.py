"""Workers of `colibri router`, which nobody starts anew: what can be put right is, the rest is told and left out."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest

from colibri.client.operator import Operator
from colibri.cluster.workers.expert_calls import ask_status, held_experts, retire_experts
from colibri.placement import WorkerEndpoint
from colibri.v1 import operator_pb2 as pb
from colibri.v1 import router_pb2, router_pb2_grpc
from tests.conftest import TINY
from tests.support.clusters import BACKEND, eventually

EVERYTHING = [(layer, expert) for layer in range(TINY.layers) for expert in range(TINY.experts)]


@dataclass
class Process:
    process: subprocess.Popen[str]
    target: str
    err: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


@contextlib.contextmanager
def running(err: Path, *words: str) -> Iterator[Process]:
    with open(err, "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "colibri.cli.main", *words, f"--backend={BACKEND}"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, err.read_text()
        yield Process(process, json.loads(line)["target"], err)
    finally:
        process.kill()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def folder(tmp_path: Path, tiny_mixtral: Path) -> Path:
    """With another model of the same shape in `other`."""
    shutil.copytree(tiny_mixtral, tmp_path / "other")
    [file] = (tmp_path / "other").glob("*.safetensors")
    data = bytearray(file.read_bytes())
    data[-64:] = bytes(64)
    file.write_bytes(data)
    return tmp_path


def expert(folder: Path, model: Path, name: str) -> contextlib.AbstractContextManager[Process]:
    return running(
        folder / f"{name}.err",
        "expert",
        str(model),
        f"--name={name}",
        "--json",
        f"--listen=unix:{folder / name}",
        "--numa-node=-1",
        "--cpu-threads=1",
        "--share-cpus",
    )


def seen(router: Process) -> dict[str, pb.WorkerInfo]:
    with Operator(router.target) as operator:
        return {worker.name: worker for worker in operator.status().workers}


def test_states_are_put_right_or_told(tiny_mixtral: Path, folder: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((5, TINY.hidden), dtype=np.float32)
    request = router_pb2.ForwardRequest(layer=0, rows=5, hidden=TINY.hidden, data=rows.tobytes())
    with (
        expert(folder, tiny_mixtral, "a") as one,
        expert(folder, tiny_mixtral, "b") as two,
        running(
            folder / "router.err",
            "router",
            str(tiny_mixtral),
            f"--expert={one.target}",
            f"--expert={two.target}",
            f"--listen=unix:{folder / 'router'}",
            "--json",
        ) as router,
        grpc.insecure_channel(router.target) as channel,
    ):
        stub: router_pb2_grpc.RouterStub = router_pb2_grpc.RouterStub(channel)

        def forward() -> bytes:
            return stub.Forward(request, timeout=30).data

        def right() -> bool:
            try:
                return forward() == expected
            except grpc.RpcError:
                return False

        expected = forward()
        assert {name: info.state for name, info in seen(router).items()} == {
            "a": "serving",
            "b": "serving",
        }

        # Lost experts and retired epochs.
        for target, name in ((one.target, "a"), (two.target, "b")):
            endpoint = WorkerEndpoint(name, 1, target)
            before = held_experts(endpoint, 5.0)
            retire_experts(endpoint, 1 << 20, EVERYTHING, 5.0)
            eventually(lambda e=endpoint, b=before: held_experts(e, 5.0) == b, 20.0, "loaded again")  # type: ignore[misc]
            eventually(lambda t=target: ask_status(t, "w", 5.0).epoch_min == 1, 20.0, "served again")  # type: ignore[misc]
        assert forward() == expected
        eventually(lambda: all(info.mends for info in seen(router).values()), 10.0, "it is told")

        # Another model at the same address.
        one.kill()
        eventually(lambda: seen(router)["a"].state == "waiting", 20.0, "it is out")
        with expert(folder, folder / "other", "a"):
            eventually(lambda: "model_hash: expected " in seen(router)["a"].reason, 20.0, "the reason")
            assert seen(router)["a"].state == "waiting"
            shown = subprocess.run(
                [sys.executable, "-m", "colibri.cli.main", "status", f"--target={router.target}"],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert "a: waiting: model_hash: expected " in shown.stdout
            assert "requests:" not in shown.stdout
        told = router.err.read_text()
        assert "is out: model_hash: expected " in told
        with expert(folder, tiny_mixtral, "a"):
            eventually(right, 30.0, "it is back")
            eventually(lambda: seen(router)["a"].reason == "", 20.0, "nothing more to tell")
            assert f"worker a at unix:{folder / 'a'} is back" in router.err.read_text()
