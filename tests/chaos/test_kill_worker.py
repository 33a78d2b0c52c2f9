"""kill -9 of a worker: a typed error that names it within a second, a new life, and the same answers as
ever."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.cli.deployment import Deployment
from colibri.coordinator.handle import RequestHandle
from colibri.deadline import Deadline
from colibri.errors import Code, ColibriError, DeadlineExpired, WorkerLost
from colibri.generation import Tokens
from colibri.transport.link import LinkKind
from tests.support.clusters import PROMPT, answer, deployed, eventually, kill, statuses
from tests.support.tiny_engine import Answer, ask, read


@pytest.fixture(scope="module")
def oracle(tiny_mixtral: Path) -> Iterator[Answer]:
    with deployed(tiny_mixtral, 0) as deployment:
        yield answer(deployment, max_tokens=24)


@pytest.fixture(params=["unix", "tcp", "shared-memory"])
def deployment(tiny_mixtral: Path, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    shared = request.param == "shared-memory"
    transport, link = ("unix", LinkKind.SHARED_MEMORY) if shared else (request.param, LinkKind.GRPC)
    with deployed(tiny_mixtral, 2, transport=transport, link=link) as running:
        yield running


def read_until_lost(
    handle: RequestHandle, kill_after: int, pid: int
) -> tuple[ColibriError, float, list[int]]:
    """Reads `kill_after` tokens, kills `pid`; returns the error, when it came after the kill, and the
    receipts before."""
    receipts: list[int] = []
    killed = 0.0
    try:
        for event in handle.events():
            if isinstance(event, Tokens):
                receipts += event.receipts
                if len(receipts) >= kill_after and not killed:
                    killed = kill(pid)
    except ColibriError as error:
        return error, time.monotonic() - killed, receipts
    raise AssertionError("the request ended without an error")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_in_the_middle_of_an_answer(deployment: Deployment, oracle: Answer, victim: int) -> None:
    before = statuses(deployment)[victim]
    handle = deployment.engine.submit(ask(PROMPT, 1000))
    error, after_s, receipts = read_until_lost(handle, 3, before.pid)

    assert isinstance(error, WorkerLost)
    assert error.code is Code.UNAVAILABLE
    assert error.retryable
    assert error.peer == before.name
    assert before.name in error.message
    assert after_s < 1.0
    # What had been delivered was right.
    common = min(len(receipts), len(oracle.receipts))
    assert receipts[:common] == oracle.receipts[:common]

    wait_restarted(deployment, victim, before.incarnation)
    status = statuses(deployment)[victim]
    assert status.pid != before.pid
    assert status.deaths == 1
    assert "SIGKILL" in status.last_error
    assert answer(deployment, max_tokens=24).receipts == oracle.receipts


def test_every_request_of_the_step_ends_and_later_ones_are_right(
    deployment: Deployment, oracle: Answer
) -> None:
    """A crowd: each of its members fails with the same typed error or is complete, and no one hangs."""
    handles = [deployment.engine.submit(ask(PROMPT, 400)) for _ in range(8)]
    outcomes: list[ColibriError | str] = []

    def read(handle: RequestHandle) -> None:
        try:
            for _ in handle.events():
                started.set()
            outcomes.append("complete")
        except ColibriError as error:
            outcomes.append(error)

    started = threading.Event()
    threads = [threading.Thread(target=read, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    assert started.wait(30)
    before = statuses(deployment)[1]
    killed = kill(before.pid)
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert len(outcomes) == 8
    lost = [outcome for outcome in outcomes if isinstance(outcome, ColibriError)]
    assert lost, "the kill came too late to hit anything"
    assert all(isinstance(error, WorkerLost) and error.peer == before.name for error in lost)
    assert time.monotonic() - killed < 30

    wait_restarted(deployment, 1, before.incarnation)
    assert answer(deployment, max_tokens=24).receipts == oracle.receipts


def test_the_endpoint_is_gone_at_once(deployment: Deployment) -> None:
    before = statuses(deployment)[0]
    killed = kill(before.pid)
    eventually(
        lambda: (
            (now := deployment.directory.current().endpoints.get(before.name)) is None
            or now.incarnation != before.incarnation
        ),
        1.0,
        "the dead worker leaves the directory",
    )
    assert time.monotonic() - killed < 1.0


def test_a_kill_while_a_worker_loads_again(deployment: Deployment, oracle: Answer) -> None:
    """The second life is ended too, before it serves: the third one does."""
    before = statuses(deployment)[1]
    kill(before.pid)
    eventually(lambda: statuses(deployment)[1].incarnation > before.incarnation, 10.0, "a second life")
    second = statuses(deployment)[1]
    kill(second.pid)
    wait_restarted(deployment, 1, second.incarnation)
    assert statuses(deployment)[1].deaths == 2
    assert answer(deployment, max_tokens=24).receipts == oracle.receipts


def test_a_frozen_worker_costs_a_request_no_more_than_its_deadline(
    deployment: Deployment, oracle: Answer
) -> None:
    frozen = statuses(deployment)[0]
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(DeadlineExpired):
            read(deployment.engine.submit(ask(PROMPT, 24, deadline=Deadline.after(1.0))))
        assert time.monotonic() - begun < 2.0
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    assert answer(deployment, max_tokens=24).receipts == oracle.receipts
    assert statuses(deployment)[0].incarnation == frozen.incarnation


def test_both_at_once_and_again_and_again(deployment: Deployment, oracle: Answer) -> None:
    """No incarnation is ever used twice, and the deployment comes back each time."""
    incarnations = {status.incarnation for status in statuses(deployment)}
    for _ in range(3):
        before = statuses(deployment)
        for status in before:
            kill(status.pid)
        for index, status in enumerate(before):
            wait_restarted(deployment, index, status.incarnation)
        assert answer(deployment, max_tokens=24).receipts == oracle.receipts
        fresh = {status.incarnation for status in statuses(deployment)}
        assert not fresh & incarnations
        incarnations |= fresh


def wait_restarted(deployment: Deployment, index: int, incarnation: int) -> None:
    name = statuses(deployment)[index].name

    def is_back() -> bool:
        endpoint = deployment.directory.current().endpoints.get(name)
        return endpoint is not None and endpoint.incarnation > incarnation

    eventually(is_back, 30.0, f"worker {name} serves again")
