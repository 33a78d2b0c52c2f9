"""kill -9 of a worker that holds experts alone: survivors load them and no answer notices; a new life; an error only
where there is no way left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.coordinator.handle import RequestHandle
from colibri.deadline import Deadline
from colibri.deployment.cluster import ClusterOptions
from colibri.deployment.running import Deployment
from colibri.errors import Code, ColibriError, DeadlineExpired, WorkerLost
from colibri.generation import Tokens
from colibri.router_service.policy import FailoverPolicy
from colibri.transport.link import LinkKind
from tests.support.clusters import PROMPT, answer, deployed, eventually, kill, statuses
from tests.support.tiny_engine import Answer, ask, read

TOKENS = 200
#: A bound, not a measurement: this machine may be busy.
SOON_S = 30.0


@pytest.fixture(scope="module")
def oracle(tiny_mixtral: Path) -> Iterator[Answer]:
    with deployed(tiny_mixtral, 0) as deployment:
        yield answer(deployment, max_tokens=TOKENS)


@pytest.fixture(params=["unix", "tcp", "shared-memory"])
def deployment(tiny_mixtral: Path, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    shared = request.param == "shared-memory"
    transport, link = ("unix", LinkKind.SHARED_MEMORY) if shared else (request.param, LinkKind.GRPC)
    with deployed(tiny_mixtral, 2, transport=transport, link=link) as running:
        yield running


def read_and_kill(handle: RequestHandle, pid: int, receipts: list[int]) -> None:
    """Kills `pid` after the third token."""
    killed = 0.0
    for event in handle.events():
        if isinstance(event, Tokens):
            receipts += event.receipts
            if len(receipts) >= 3 and not killed:
                killed = kill(pid)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_in_the_middle_of_an_answer(deployment: Deployment, oracle: Answer, victim: int) -> None:
    """The only holder of half of the experts: the other one loads them, and the answer goes on."""
    before = statuses(deployment)[victim]
    receipts: list[int] = []
    read_and_kill(deployment.engine.submit(ask(PROMPT, TOKENS)), before.pid, receipts)
    assert receipts == oracle.receipts

    wait_restarted(deployment, victim, before.incarnation)
    status = statuses(deployment)[victim]
    assert status.pid != before.pid
    assert status.deaths == 1
    assert "SIGKILL" in status.last_error
    assert answer(deployment, max_tokens=TOKENS).receipts == oracle.receipts


def test_a_crowd_does_not_notice(deployment: Deployment, oracle: Answer) -> None:
    handles = [deployment.engine.submit(ask(PROMPT, TOKENS)) for _ in range(8)]
    found: list[list[int] | ColibriError] = []
    started = threading.Event()

    def read(handle: RequestHandle) -> None:
        receipts: list[int] = []
        try:
            for event in handle.events():
                started.set()
                if isinstance(event, Tokens):
                    receipts += event.receipts
            found.append(receipts)
        except ColibriError as error:
            found.append(error)

    threads = [threading.Thread(target=read, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    assert started.wait(30)
    kill(statuses(deployment)[1].pid)
    for thread in threads:
        thread.join(60)
    assert found == [oracle.receipts] * 8


def test_without_a_way_left_the_request_ends_and_later_ones_are_right(
    tiny_mixtral: Path, oracle: Answer
) -> None:
    """No memory for what was lost, and no time to wait for the worker."""
    with deployed(tiny_mixtral, 2) as roomy:
        memory = max(status.weight_bytes for status in statuses(roomy))
    policy = FailoverPolicy(wait_for_holder_s=0.05)
    with deployed(tiny_mixtral, 2, cluster=ClusterOptions(policy=policy, memory=memory)) as deployment:
        before = statuses(deployment)[1]
        receipts: list[int] = []
        begun = time.monotonic()
        with pytest.raises(WorkerLost) as caught:
            read_and_kill(deployment.engine.submit(ask(PROMPT, 1000)), before.pid, receipts)
        assert time.monotonic() - begun < SOON_S
        assert caught.value.code is Code.UNAVAILABLE
        assert caught.value.retryable
        assert caught.value.retry_after_s is not None
        common = min(len(receipts), len(oracle.receipts))
        assert receipts[:common] == oracle.receipts[:common]
        assert deployment.manager is not None
        eventually(
            lambda: "memory for experts" in deployment.manager.view().last_error,  # type: ignore[union-attr]
            SOON_S,
            "the reason is told",
        )
        wait_restarted(deployment, 1, before.incarnation)
        assert answer(deployment, max_tokens=TOKENS).receipts == oracle.receipts


def test_the_endpoint_is_gone_soon(deployment: Deployment) -> None:
    before = statuses(deployment)[0]
    kill(before.pid)
    eventually(
        lambda: (
            (now := deployment.directory.current().endpoints.get(before.name)) is None
            or now.incarnation != before.incarnation
        ),
        SOON_S,
        "the dead worker leaves the directory",
    )


def test_a_kill_while_a_worker_loads_again(deployment: Deployment, oracle: Answer) -> None:
    """The second life is ended too, before it serves: the third one does."""
    before = statuses(deployment)[1]
    kill(before.pid)
    eventually(lambda: statuses(deployment)[1].incarnation > before.incarnation, SOON_S, "a second life")
    second = statuses(deployment)[1]
    kill(second.pid)
    wait_restarted(deployment, 1, second.incarnation)
    assert statuses(deployment)[1].deaths == 2
    assert answer(deployment, max_tokens=TOKENS).receipts == oracle.receipts


def test_a_frozen_worker_costs_a_request_no_more_than_its_deadline(
    deployment: Deployment, oracle: Answer
) -> None:
    frozen = statuses(deployment)[0]
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(DeadlineExpired):
            read(deployment.engine.submit(ask(PROMPT, 24, deadline=Deadline.after(1.0))))
        assert time.monotonic() - begun < SOON_S
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    assert answer(deployment, max_tokens=TOKENS).receipts == oracle.receipts
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
        assert answer(deployment, max_tokens=TOKENS).receipts == oracle.receipts
        fresh = {status.incarnation for status in statuses(deployment)}
        assert not fresh & incarnations
        incarnations |= fresh


def wait_restarted(deployment: Deployment, index: int, incarnation: int) -> None:
    name = statuses(deployment)[index].name

    def is_back() -> bool:
        endpoint = deployment.directory.current().endpoints.get(name)
        return endpoint is not None and endpoint.incarnation > incarnation

    eventually(is_back, SOON_S, f"worker {name} serves again")
