"""An expert worker that computes answers meanwhile, and ends when told once or twice, killed, or left by its parent."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from colibri.cluster.workers.expert_calls import end_worker
from colibri.errors import ColibriError, WorkerLost
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.placement import WorkerEndpoint
from colibri.v1 import expert_pb2
from tests.support.worker_client import (
    WAIT_S,
    WorkerClient,
    WorkerProcess,
    eventually,
    limits_of,
    worker_process,
)

MAX_ROWS = 8192
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def heavy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two experts that keep one thread busy for a good while at 8192 rows."""
    shape = RandomMixtral(hidden=512, ffn=2048, layers=1, experts=2, top_k=2, heads=4, kv_heads=2, vocab=300)
    return random_mixtral(tmp_path_factory.mktemp("heavy") / "m", shape)


@pytest.fixture
def heavy(heavy_model: Path, tmp_path: Path) -> Iterator[tuple[WorkerProcess, WorkerClient]]:
    flags = (f"--max-rows={MAX_ROWS}", "--grace=120")
    with worker_process(heavy_model, f"unix:{tmp_path}/w.sock", *flags) as worker:
        client = WorkerClient(worker.target, limits_of(heavy_model, "fp32", MAX_ROWS))
        client.load()
        yield worker, client
        client.close()


def told_with_five_in_flight(worker: WorkerProcess, client: WorkerClient) -> None:
    """SIGTERM, and the worker has heard it."""
    for correlation_id in range(5):
        client.send(client.request(correlation_id, MAX_ROWS))
    eventually(lambda: client.status().queued > 0)
    worker.process.send_signal(signal.SIGTERM)
    eventually(lambda: client.health() == NOT_SERVING)


def test_health_and_status_answer_while_it_computes(heavy: tuple[WorkerProcess, WorkerClient]) -> None:
    _, client = heavy
    client.send(client.request(1, MAX_ROWS))
    eventually(lambda: client.status().queued == 0 and client.status().requests_done == 0)
    answered = 0
    while client.status().requests_done == 0:
        assert client.health() == SERVING
        answered += 1
    assert answered > 3
    assert client.reply().header.kind == expert_pb2.FRAME_KIND_RESULT


def test_sigterm_lets_what_is_in_flight_finish(heavy: tuple[WorkerProcess, WorkerClient]) -> None:
    worker, client = heavy
    told_with_five_in_flight(worker, client)
    with pytest.raises(WorkerLost, match=r"UNAVAILABLE: w0 is shutting down"):
        client.open_link().receive(WAIT_S)
    kinds = [client.reply().header.kind for _ in range(5)]
    assert kinds.count(expert_pb2.FRAME_KIND_RESULT) >= 2
    assert set(kinds) <= {expert_pb2.FRAME_KIND_RESULT, expert_pb2.FRAME_KIND_BUSY}
    with pytest.raises(WorkerLost):
        client.link.receive(WAIT_S)
    assert worker.process.wait(WAIT_S) == 0


def test_an_idle_worker_ends_at_once(heavy: tuple[WorkerProcess, WorkerClient]) -> None:
    worker, client = heavy
    assert client.call(client.request(1)).header.kind == expert_pb2.FRAME_KIND_RESULT
    begin = time.monotonic()
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(WAIT_S) == 0
    assert time.monotonic() - begin < 60
    assert not Path(worker.target.removeprefix("unix:")).exists()


def receive_all(client: WorkerClient) -> None:
    while True:
        client.link.receive(WAIT_S)


def test_a_second_signal_ends_at_once(heavy: tuple[WorkerProcess, WorkerClient]) -> None:
    worker, client = heavy
    told_with_five_in_flight(worker, client)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.process.wait(WAIT_S) == 128 + signal.SIGTERM
    with pytest.raises(WorkerLost, match=r"w0: stream lost: UNAVAILABLE"):
        receive_all(client)


def test_a_killed_worker_is_noticed_while_it_computes(heavy: tuple[WorkerProcess, WorkerClient]) -> None:
    worker, client = heavy
    client.send(client.request(1, MAX_ROWS))
    eventually(lambda: client.status().queued == 0)
    killer = threading.Timer(0.05, worker.process.kill)
    killer.start()
    begin = time.monotonic()
    with pytest.raises(WorkerLost, match=r"w0: stream lost: UNAVAILABLE"):
        client.link.receive(WAIT_S)
    assert time.monotonic() - begin < 60
    killer.join()


def test_a_worker_ends_with_its_parent(tiny_mixtral: Path, tmp_path: Path) -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'colibri.cli.main', 'expert', sys.argv[1],\n"
        "    f'--listen={sys.argv[2]}', f'--parent-pid={os.getpid()}', '--cpu-threads=1'],\n"
        "    stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tiny_mixtral), f"unix:{tmp_path}/w.sock"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = Path("/proc", parent.stdout.readline().strip())
    assert child.exists()
    parent.kill()
    parent.wait(10)
    parent.stdout.close()
    # As a zombie until this machine's init collects it.
    eventually(lambda: not child.exists() or ") Z " in (child / "stat").read_text())


def test_a_worker_whose_parent_is_gone_does_not_start(tiny_mixtral: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "colibri.cli.main", "expert", str(tiny_mixtral)]
    run = subprocess.run(
        [*command, f"--listen=unix:{tmp_path}/w.sock", "--parent-pid=1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 1
    assert "the parent process 1 is gone" in run.stderr
    assert run.stdout == ""


def test_a_worker_that_no_coordinator_calls_ends_itself(heavy_model: Path, tmp_path: Path) -> None:
    with worker_process(heavy_model, f"unix:{tmp_path}/w.sock", "--lease=3") as worker:
        client = WorkerClient(worker.target, limits_of(heavy_model, "fp32", MAX_ROWS))
        until = time.monotonic() + 5.0
        while time.monotonic() < until:  # longer than the lease, which each call begins anew
            client.status()
            time.sleep(0.2)
        assert worker.process.poll() is None
        assert worker.process.wait(WAIT_S) == 0
        client.close()


def test_a_worker_is_ended_by_a_coordinator_that_did_not_start_it(heavy_model: Path, tmp_path: Path) -> None:
    for at_once in (False, True):
        with worker_process(heavy_model, f"unix:{tmp_path}/w.sock") as worker:
            client = WorkerClient(worker.target, limits_of(heavy_model, "fp32", MAX_ROWS))
            life = client.status().incarnation
            client.close()
            endpoint = WorkerEndpoint("w0", life + 1, worker.target)
            with pytest.raises(ColibriError, match=f"incarnation: expected {life}, of this life of w0"):
                end_worker(endpoint, WAIT_S, at_once=at_once)
            assert worker.process.poll() is None
            end_worker(replace(endpoint, incarnation=life), WAIT_S, at_once=at_once)
            assert worker.process.wait(WAIT_S) == (128 + signal.SIGKILL if at_once else 0)
