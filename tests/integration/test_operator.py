"""The service Operator of a running `colibri serve`, and the verbs over it, as an operator types them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.client import Client
from colibri.client.operator import Operator
from colibri.errors import InvalidInput
from colibri.generation import Finished, Tokens
from colibri.v1 import operator_pb2 as pb
from tests.support.clusters import PROMPT, eventually, is_alive, kill
from tests.support.serving import Serving, serving

WAIT_S = 60.0


@pytest.fixture(scope="module")
def running(tiny_mixtral: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("operator")
    with serving(tiny_mixtral, folder, "--workers=2", "--replicas=2") as serve:
        yield serve
        assert serve.end(signal.SIGTERM) == 0


def colibri(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "colibri.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


def ask(target: str, tokens: int = 16) -> list[int]:
    receipts: list[int] = []
    with contextlib.closing(Client(target)) as client:
        for event in client.generate(PROMPT, max_tokens=tokens, temperature=0, ignore_eos=True):
            if isinstance(event, Tokens):
                receipts += event.receipts
    return receipts


def by_name(reply: pb.ClusterStatusReply) -> dict[str, pb.WorkerInfo]:
    return {worker.name: worker for worker in reply.workers}


def test_status_tells_all(running: Serving) -> None:
    ask(running.target)
    with Operator(running.target) as operator:
        reply = operator.status(experts=True)
        assert operator.status().workers[0].held == []
    assert reply.replicas == 2
    assert reply.epoch >= 1
    assert reply.change == ""
    assert reply.engine.finished >= 1
    assert reply.engine.tokens >= 16
    assert reply.engine.kv_pages > 0
    assert reply.routing.messages > 0
    assert reply.routing.balance >= 1.0
    workers = by_name(reply)
    assert {"w0", "w1"} <= workers.keys()
    for worker in workers.values():
        assert worker.state == "serving"
        assert is_alive(worker.pid)
        assert worker.experts == len(worker.held) == 24
        assert worker.weight_bytes > 0
        assert worker.health == "healthy"
        assert worker.uptime_s > 0
    assert sum(worker.rows_done for worker in workers.values()) > 0


def test_the_verbs(running: Serving) -> None:
    target = f"--target={running.target}"
    expected = ask(running.target)
    scaled = colibri("scale", "3", target)
    assert scaled.returncode == 0, scaled.stderr
    assert "starting w2" in scaled.stderr
    assert scaled.stdout.startswith("scale 3: done, epoch ")

    shown = colibri("status", target, "--experts")
    assert shown.returncode == 0
    assert "2 holders per expert" in shown.stdout
    assert "w2 holds " in shown.stdout
    document = json.loads(colibri("status", target, "--json").stdout)
    assert [worker["name"] for worker in document["workers"]] == ["w0", "w1", "w2"]
    assert isinstance(document["workers"][0]["weight_bytes"], int)

    with Operator(running.target) as operator:
        holders = by_name(operator.status(experts=True))
    source = next(name for name, worker in holders.items() if "1:3" in worker.held)
    to = next((name for name, worker in holders.items() if "1:3" not in worker.held), "")
    moved = json.loads(colibri("move", "1:3", f"--to={to}", f"--from={source}", target, "--json").stdout)
    assert moved["done"] is True
    with Operator(running.target) as operator:
        holders = by_name(operator.status(experts=True))
    assert "1:3" in holders[to].held
    assert "1:3" not in holders[source].held

    assert colibri("drain", "w1", target).returncode == 0
    with Operator(running.target) as operator:
        assert by_name(operator.status())["w1"].state == "drained"
    assert ask(running.target) == expected
    assert colibri("drain", "w1", "--undo", target).returncode == 0
    assert colibri("scale", "2", target).returncode == 0
    assert ask(running.target) == expected


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("drain", "w8"), 1, "colibri drain: worker: expected one of w0, w1"),
        (("drain", "w0", "--undo"), 1, "worker: expected a drained worker, got w0"),
        (("move", "1:99", "--to=w0"), 1, "expert: expected 0 to 7, got 99"),
        (("move", "1:1"), 1, "to: expected a worker to move it to"),
        (("move", "1-1", "--to=w0"), 2, "expected LAYER:EXPERT, as 3:17, got '1-1'"),
        (("scale", "0"), 2, "expected a whole number from 1 to 256, got '0'"),
        (("scale", "2", "--timeout=0"), 2, "--timeout"),
    ],
)
def test_what_cannot_be_is_refused(running: Serving, words: tuple[str, ...], code: int, message: str) -> None:
    done = colibri(*words, f"--target={running.target}")
    assert done.returncode == code
    assert message in done.stderr
    assert done.stdout == ""


def test_nobody_there() -> None:
    done = colibri("status", "--target=127.0.0.1:1")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr


def test_without_workers_there_is_nothing_to_change(tiny_mixtral: Path, tmp_path: Path) -> None:
    with serving(tiny_mixtral, tmp_path, "--workers=0") as serve, Operator(serve.target) as operator:
        assert list(operator.status().workers) == []
        with pytest.raises(InvalidInput, match="a deployment with workers"):
            operator.scale(2, 5.0)


def test_watching(running: Serving) -> None:
    command = [
        sys.executable,
        "-m",
        "colibri.cli.main",
        "status",
        f"--target={running.target}",
        "--watch=0.1",
    ]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    assert all(line["workers"] for line in lines)


def test_sigterm_under_load_lets_every_answer_end(tiny_mixtral: Path, tmp_path: Path) -> None:
    """With replicas, many users, and a worker killed while the server drains."""
    with serving(tiny_mixtral, tmp_path, "--workers=3", "--replicas=2") as serve:
        expected = ask(serve.target, 200)
        found: list[list[int]] = []
        begun = threading.Semaphore(0)

        def read() -> None:
            receipts: list[int] = []
            with contextlib.closing(Client(serve.target)) as client:
                for event in client.generate(PROMPT, max_tokens=200, temperature=0, ignore_eos=True):
                    if isinstance(event, Tokens):
                        if not receipts:
                            begun.release()
                        receipts += event.receipts
                    elif isinstance(event, Finished):
                        found.append(receipts)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert begun.acquire(timeout=WAIT_S)
        workers = serve.workers()
        serve.process.send_signal(signal.SIGTERM)
        kill(workers[0])
        for thread in threads:
            thread.join(WAIT_S)
        assert found == [expected] * 4
        assert serve.process.wait(30) == 0
        assert not any(is_alive(pid) for pid in workers)
        assert list(tmp_path.glob("colibri-run-*")) == []


def test_a_second_signal_during_a_change_ends_at_once(tiny_mixtral: Path, tmp_path: Path) -> None:
    with serving(tiny_mixtral, tmp_path, "--workers=2") as serve:
        with contextlib.closing(Client(serve.target)) as client:
            events = client.generate(PROMPT, max_tokens=900, temperature=0, ignore_eos=True)
            next(event for event in events if isinstance(event, Tokens))
            scaling = subprocess.Popen(
                [sys.executable, "-m", "colibri.cli.main", "scale", "4", f"--target={serve.target}"],
                stderr=subprocess.PIPE,
                text=True,
            )
            assert scaling.stderr is not None
            assert "starting w2, w3" in scaling.stderr.readline()
            workers = serve.workers()
            serve.process.send_signal(signal.SIGTERM)
            eventually(lambda: "SIGTERM" in serve.err.read_text(), 10, "the first signal is heard")
            asked = time.monotonic()
            assert serve.end(signal.SIGTERM) == 128 + signal.SIGTERM
            assert time.monotonic() - asked < 25.0
        scaling.communicate(timeout=WAIT_S)
        assert scaling.returncode == 1
        eventually(lambda: not any(is_alive(pid) for pid in workers), 10, "the workers end with it")
        assert list(tmp_path.glob("colibri-run-*")) == []
