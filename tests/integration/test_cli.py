"""`colibri generate`, `expert` and `router` as processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from colibri.kernels.api import ComputeMode
from colibri.kernels.arithmetic.floats import to_bf16
from colibri.v1 import router_pb2, router_pb2_grpc
from tests.conftest import TINY
from tests.support.clusters import BACKEND, deployed, eventually, is_alive, kill
from tests.support.serving import children_of, workers_among
from tests.support.short import short

Matrix = NDArray[np.float32]
COLIBRI = [sys.executable, "-m", "colibri.cli.main"]


def colibri(*arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COLIBRI, *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


def generate(model: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return colibri("generate", str(model), f"--backend={BACKEND}", *options)


def test_json_is_the_same_on_any_number_of_workers(tiny_mixtral: Path) -> None:
    common = (
        "--prompt=w1 w2 w3",
        "--max-tokens=12",
        "--seed=5",
        "--temperature=0.8",
        "--top-k=40",
        "--top-p=0.9",
        "--json",
    )
    found = []
    for options in (
        ("--workers=0",),
        ("--workers=2",),
        ("--workers=1", "--transport=tcp", "--kv-page=8", "--prefill-chunk=1"),
    ):
        result = generate(tiny_mixtral, *common, *options)
        assert result.returncode == 0, result.stderr
        found.append(json.loads(result.stdout))
    for document in found:
        assert document["ids"] == found[0]["ids"]
        assert document["receipts"] == found[0]["receipts"]
        assert document["seed"] == 5
        assert document["usage"]["completion_tokens"] == len(document["ids"])
        assert {"process start", "checkpoint", "experts loaded", "first token"} <= set(document["phases_s"])
    assert found[1]["workers"] == ["w0", "w1"]
    assert "workers up" in found[1]["phases_s"]


def test_another_seed_is_another_answer(tiny_mixtral: Path) -> None:
    common = ("--prompt=w1", "--max-tokens=16", "--temperature=1", "--workers=0", "--json")
    first, second = (
        json.loads(generate(tiny_mixtral, *common, f"--seed={seed}").stdout)["ids"] for seed in (1, 2)
    )
    assert first != second


def test_text_receipts_and_phases(tiny_mixtral: Path) -> None:
    result = generate(tiny_mixtral, "--prompt=w1 w2", "--max-tokens=3", "--workers=2", "--receipts")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    receipts = [line.split()[0] for line in lines[-4:]]
    assert all(len(receipt) == 16 and int(receipt, 16) for receipt in receipts)
    assert receipts[2] == receipts[3]
    assert "worker w0" in result.stderr
    assert "first token" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr


def test_prompt_from_stdin(tiny_mixtral: Path) -> None:
    options = ("--max-tokens=4", "--workers=0", "--json", f"--backend={BACKEND}")
    piped = subprocess.run(
        [*COLIBRI, "generate", str(tiny_mixtral), "--prompt=-", *options],
        input="w1 w2",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    given = generate(tiny_mixtral, "--prompt=w1 w2", *options[:-1])
    assert json.loads(piped.stdout)["receipts"] == json.loads(given.stdout)["receipts"]


def test_what_does_not_fit_the_model_is_an_error(tiny_mixtral: Path) -> None:
    for options, message in (
        (("--max-tokens=100000",), "max_tokens"),
        (("--chat",), "chat template"),
        (("--top-k=5000",), "top_k"),
    ):
        result = generate(tiny_mixtral, "--prompt=w1", "--workers=0", *options)
        assert result.returncode == 1
        assert message in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_no_worker(
    tiny_mixtral: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    command = [
        *COLIBRI,
        "generate",
        str(tiny_mixtral),
        "--prompt=w1",
        "--max-tokens=900",
        f"--backend={BACKEND}",
    ]
    with short(tmp_path) as temporary:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        assert process.stdout is not None
        assert process.stdout.read(2)
        children = children_of(process.pid)
        assert len(workers_among(children)) == 2
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
        assert process.returncode == code, err
        assert not any(is_alive(pid) for pid in children)
    assert list(tmp_path.iterdir()) == []


class Service:
    """A process that prints a ready line in JSON."""

    def __init__(self, process: subprocess.Popen[str], ready: dict[str, object]) -> None:
        self.process, self.ready = process, ready
        self.target = str(ready["target"])


@contextlib.contextmanager
def service(*arguments: str) -> Iterator[Service]:
    process = subprocess.Popen([*COLIBRI, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield Service(process, json.loads(process.stdout.readline()))
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(30)
        process.stdout.close()


def test_router_over_workers_started_by_hand(tiny_mixtral: Path, tmp_path: Path) -> None:
    """`expert`, `expert`, `router`: Router.Forward gives what the router of `--workers 0` gives, also after a
    restart."""
    rng = np.random.default_rng()
    x = rng.standard_normal((5, TINY.hidden), dtype=np.float32)
    with deployed(tiny_mixtral, 0) as local:
        rows = to_bf16(x) if local.router.mode is ComputeMode.BF16 else x
        expected = [local.router.forward(layer, rows).rows for layer in range(TINY.layers)]
        chosen = local.router.gate(1, rows)

    first = f"unix:{tmp_path}/a.sock"
    expert = ("expert", str(tiny_mixtral), "--json", f"--backend={BACKEND}")
    with (
        service(*expert, "--name=a", f"--listen={first}") as one,
        service(*expert, "--name=b") as two,
        service(
            "router",
            str(tiny_mixtral),
            f"--expert={one.target}",
            f"--expert={two.target}",
            "--listen=127.0.0.1:0",
            f"--backend={BACKEND}",
            "--json",
        ) as router,
        grpc.insecure_channel(router.target) as channel,
    ):
        assert router.ready["workers"] == ["a", "b"]
        stub = router_pb2_grpc.RouterStub(channel)

        def forward(layer: int) -> Matrix:
            request = router_pb2.ForwardRequest(layer=layer, rows=5, hidden=TINY.hidden, data=x.tobytes())
            reply = stub.Forward(request, timeout=30)
            return np.frombuffer(reply.data, np.float32).reshape(5, TINY.hidden)

        for layer in range(TINY.layers):
            assert np.array_equal(forward(layer), expected[layer])
        gate = stub.Gate(
            router_pb2.GateRequest(layer=1, rows=5, hidden=TINY.hidden, data=x.tobytes()), timeout=30
        )
        assert list(gate.expert) == chosen.experts.ravel().tolist()
        assert list(gate.weight) == chosen.weights.ravel().tolist()

        kill(one.process.pid)
        one.process.wait(10)
        with pytest.raises(grpc.RpcError) as caught:
            forward(0)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        metadata = {item.key: item.value for item in caught.value.trailing_metadata()}
        assert str(metadata["colibri-peer"]) == "a"

        with service(*expert, "--name=a", f"--listen={first}"):
            eventually(lambda: comes_back(forward, expected[0]), 30.0, "the router uses the new life")
        router.process.terminate()
        assert router.process.wait(30) == 0


def comes_back(forward: Callable[[int], Matrix], expected: Matrix) -> bool:
    try:
        return np.array_equal(forward(0), expected)
    except grpc.RpcError:
        return False


def test_router_refuses_two_workers_of_one_name(tiny_mixtral: Path, tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/a.sock"
    with service(
        "expert", str(tiny_mixtral), "--json", f"--backend={BACKEND}", "--name=a", f"--listen={listen}"
    ) as worker:
        twice = (f"--expert={worker.target}", f"--expert={worker.target}")
        result = colibri("router", str(tiny_mixtral), *twice, "--listen=127.0.0.1:0", f"--backend={BACKEND}")
        assert result.returncode == 1
        assert "workers: expected names that differ, got a at" in result.stderr
        worker.process.terminate()
        assert worker.process.wait(30) == 0


def test_router_without_workers_names_the_address(tiny_mixtral: Path, tmp_path: Path) -> None:
    result = colibri(
        "router",
        str(tiny_mixtral),
        f"--expert=unix:{tmp_path}/nobody.sock",
        "--listen=127.0.0.1:0",
        f"--backend={BACKEND}",
        "--find-timeout=0.5",
    )
    assert result.returncode == 1
    assert f"worker at unix:{tmp_path}/nobody.sock" in result.stderr
