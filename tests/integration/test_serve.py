"""`colibri serve` as a process: ready line, client, signals, a taken address."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from colibri.client import Client
from colibri.errors import ColibriError
from colibri.generation import Finished, Tokens
from tests.support.clusters import PROMPT, answer, deployed, eventually, is_alive, kill
from tests.support.serving import serving


def ask(target: str, prompt: Sequence[int] = PROMPT, max_tokens: int = 16) -> list[int]:
    """Receipts of a greedy answer."""
    receipts: list[int] = []
    with contextlib.closing(Client(target)) as client:
        for event in client.generate(prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True):
            if isinstance(event, Tokens):
                receipts += event.receipts
    return receipts


def health(target: str) -> int:
    with grpc.insecure_channel(target) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=""), timeout=5
        )
    return int(reply.status)


def test_answers_as_one_process_does_and_ends_orderly(tiny_mixtral: Path, tmp_path: Path) -> None:
    with deployed(tiny_mixtral, 0) as oracle:
        expected = answer(oracle).receipts
    with serving(tiny_mixtral, tmp_path) as serve:
        assert health(serve.target) == health_pb2.HealthCheckResponse.SERVING
        with contextlib.closing(Client(serve.target)) as client:
            info = client.model_info()
        assert info.workers == ("w0", "w1")
        assert ask(serve.target) == expected
        workers = serve.workers()
        assert len(workers) == 2
        assert serve.end(signal.SIGTERM) == 0
        assert not any(is_alive(pid) for pid in workers)
        assert list(tmp_path.glob("colibri-run-*")) == []


def test_sigterm_lets_running_answers_end_and_refuses_new_ones(tiny_mixtral: Path, tmp_path: Path) -> None:
    with serving(tiny_mixtral, tmp_path) as serve, contextlib.closing(Client(serve.target)) as client:
        events = client.generate(PROMPT, max_tokens=200, temperature=0, ignore_eos=True)
        next(event for event in events if isinstance(event, Tokens))
        serve.process.send_signal(signal.SIGTERM)
        rest = list(events)
        finished = rest[-1]
        assert isinstance(finished, Finished)
        assert finished.usage.completion_tokens == 200
        with pytest.raises(ColibriError):
            list(client.generate(PROMPT, max_tokens=1, timeout_s=5))
        assert serve.process.wait(30) == 0


def test_the_grace_is_a_bound(tiny_mixtral: Path, tmp_path: Path) -> None:
    with (
        serving(tiny_mixtral, tmp_path, "--grace=0.3") as serve,
        contextlib.closing(Client(serve.target)) as client,
    ):
        events = client.generate(PROMPT, max_tokens=1000, temperature=0, ignore_eos=True)
        next(event for event in events if isinstance(event, Tokens))
        asked = time.monotonic()
        serve.process.send_signal(signal.SIGTERM)
        with pytest.raises(ColibriError):
            list(events)
        assert serve.process.wait(30) == 0
        assert time.monotonic() - asked < 15


def test_a_second_signal_ends_at_once(tiny_mixtral: Path, tmp_path: Path) -> None:
    with serving(tiny_mixtral, tmp_path) as serve, contextlib.closing(Client(serve.target)) as client:
        events = client.generate(PROMPT, max_tokens=1000, temperature=0, ignore_eos=True)
        next(event for event in events if isinstance(event, Tokens))
        workers = serve.workers()
        serve.process.send_signal(signal.SIGTERM)
        eventually(lambda: "SIGTERM" in serve.err.read_text(), 10, "the first signal is heard")
        assert serve.end(signal.SIGTERM) == 128 + signal.SIGTERM
        eventually(lambda: not any(is_alive(pid) for pid in workers), 10, "the workers end with it")
        assert list(tmp_path.glob("colibri-run-*")) == []


def test_workers_die_with_a_killed_server_and_the_next_one_sweeps(tiny_mixtral: Path, tmp_path: Path) -> None:
    with serving(tiny_mixtral, tmp_path) as serve:
        workers = serve.workers()
        kill(serve.process.pid)
        serve.process.wait(10)
        eventually(lambda: not any(is_alive(pid) for pid in workers), 10, "the workers end with it")
    assert len(list(tmp_path.glob("colibri-run-*"))) == 1
    with serving(tiny_mixtral, tmp_path) as serve:
        assert len(list(tmp_path.glob("colibri-run-*"))) == 1
        assert serve.end(signal.SIGINT) == 130
    assert list(tmp_path.glob("colibri-run-*")) == []


def test_a_killed_worker_is_not_noticed_by_its_clients(tiny_mixtral: Path, tmp_path: Path) -> None:
    with serving(tiny_mixtral, tmp_path) as serve, contextlib.closing(Client(serve.target)) as client:
        expected = ask(serve.target, max_tokens=400)
        receipts: list[int] = []
        victim = serve.workers()[0]
        for event in client.generate(PROMPT, max_tokens=400, temperature=0, ignore_eos=True):
            if isinstance(event, Tokens):
                if not receipts:
                    kill(victim)
                receipts += event.receipts
        assert receipts == expected
        eventually(lambda: set(client.model_info().workers) == {"w0", "w1"}, 30, "the worker is back")
        assert victim not in serve.workers()
        assert ask(serve.target, max_tokens=400) == expected
        assert serve.end(signal.SIGTERM) == 0


def test_a_taken_port_is_told_at_once(tiny_mixtral: Path, tmp_path: Path) -> None:
    with serving(tiny_mixtral, tmp_path) as serve:
        result = refused(tiny_mixtral, serve.target)
        assert f"--listen: expected an address that can be bound, got {serve.target}" in result


def test_a_taken_socket_is_told_at_once_and_a_stale_one_is_taken_over(
    tiny_mixtral: Path, tmp_path: Path
) -> None:
    listen = f"unix:{tmp_path}/colibri.sock"
    with serving(tiny_mixtral, tmp_path, listen=listen) as serve:
        assert serve.target == listen
        assert "a server answers" in refused(tiny_mixtral, listen)
        kill(serve.process.pid)
        serve.process.wait(10)
    assert (tmp_path / "colibri.sock").exists()
    with serving(tiny_mixtral, tmp_path, listen=listen) as serve:
        assert len(ask(serve.target, max_tokens=2)) == 2


def refused(model: Path, listen: str) -> str:
    command = [sys.executable, "-m", "colibri.cli.main", "serve", str(model), f"--listen={listen}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    return result.stderr


def test_two_clients_at_once_get_what_one_gets(tiny_mixtral: Path, tmp_path: Path) -> None:
    prompts = [[*PROMPT, extra] for extra in range(20, 26)]
    with serving(tiny_mixtral, tmp_path) as serve:
        alone = [ask(serve.target, prompt) for prompt in prompts]
        crowd: list[list[int]] = [[] for _ in prompts]

        def run(index: int) -> None:
            crowd[index] = ask(serve.target, prompts[index])

        threads = [threading.Thread(target=run, args=(index,)) for index in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert crowd == alone
