"""Changes of placement that fail, in each phase, with real workers: the old placement serves on, every answer stays
right, nothing is left behind, and the next change works."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colibri.cluster.experts.holders import copies, held_by, holders_of
from colibri.cluster.placing import transaction
from colibri.cluster.placing.commands import Command, Drain, Move, Scale, Ticket
from colibri.cluster.placing.transaction import Report, Step
from colibri.cluster.workers.expert_calls import Cancellation, held_experts, load_experts
from colibri.cluster.workers.local import Subprocesses
from colibri.deadline import Deadline
from colibri.deployment.cluster import ClusterOptions
from colibri.deployment.running import Deployment
from colibri.errors import (
    Cancelled,
    ColibriError,
    DeadlineExpired,
    OverBudget,
    ShuttingDown,
    WorkerLost,
)
from colibri.grpc_options import channel_options
from colibri.v1 import faults_pb2, faults_pb2_grpc
from tests.support.clusters import deployed, eventually, kill, statuses
from tests.support.tiny_engine import Answer
from tests.support.traffic import Traffic, expected_answers

USERS, TOKENS = 2, 48
WAIT_S = 60.0


@pytest.fixture(scope="module")
def expected(tiny_mixtral: Path) -> Iterator[list[Answer]]:
    with deployed(tiny_mixtral, 0) as oracle:
        yield expected_answers(oracle, USERS, TOKENS)


def carry_out(deployment: Deployment, command: Command, timeout_s: float = WAIT_S) -> list[Step]:
    assert deployment.manager is not None
    return [step for step in deployment.manager.submit(command, timeout_s).steps(1.0) if step is not None]


def settled(deployment: Deployment, workers: int) -> None:
    """All workers serve, and hold what the placement gives them and nothing else."""

    def agree() -> bool:
        membership = deployment.directory.current()
        holders = holders_of(membership.placement)
        return len(membership.endpoints) == workers and all(
            held_experts(endpoint, 5.0) == held_by(holders, name)
            for name, endpoint in membership.endpoints.items()
        )

    eventually(agree, 30.0, "workers hold what the placement says")


def at_step(deployment: Deployment, phase: str, act: Callable[[Step], None]) -> None:
    """`act` is called, once, on the thread that is at that step, while nothing goes on."""
    assert deployment.manager is not None
    state = deployment.manager._state
    original = state.reporter
    pending = [True]

    def reporter(ticket: Ticket | None) -> Report:
        report = original(ticket)

        def told(step: Step) -> None:
            report(step)
            if pending and step.phase == phase and (phase != "prepare" or step.experts_total):
                pending.clear()
                act(step)

        return told

    state.reporter = reporter  # type: ignore[method-assign]


def pid_of(deployment: Deployment, name: str) -> int:
    return next(status.pid for status in statuses(deployment) if status.name == name)


def kill_and_wait(deployment: Deployment, name: str) -> None:
    """Returns when routers know."""
    kill(pid_of(deployment, name))
    eventually(lambda: name not in deployment.directory.current().endpoints, 5.0, f"{name} is gone")


def test_a_target_killed_while_it_loads(tiny_mixtral: Path, expected: list[Answer]) -> None:
    with deployed(tiny_mixtral, 3, replicas=2) as deployment, Traffic(deployment, expected) as traffic:
        before = holders_of(deployment.directory.current().placement)
        expert = next(e for e in range(8) if "w2" not in before[0][e])
        at_step(deployment, "prepare", lambda step: kill_and_wait(deployment, "w2"))
        with pytest.raises(WorkerLost, match="w2"):
            carry_out(deployment, Move((0, expert), "w2", before[0][expert][0]))
        assert holders_of(deployment.directory.current().placement) == before
        traffic.wait()
        settled(deployment, 3)
        carry_out(deployment, Move((0, expert), "w2", before[0][expert][0]))
        assert holders_of(deployment.directory.current().placement)[0][expert][0] == "w2"
        traffic.wait()


def test_a_target_killed_between_its_load_and_the_commit(tiny_mixtral: Path, expected: list[Answer]) -> None:
    with deployed(tiny_mixtral, 3, replicas=2) as deployment, Traffic(deployment, expected) as traffic:
        before = holders_of(deployment.directory.current().placement)
        expert = next(e for e in range(8) if "w2" not in before[0][e])
        publisher = deployment.launcher.publisher  # type: ignore[union-attr]
        commit = publisher.commit

        def too_late(*args: object) -> None:
            publisher.commit = commit  # type: ignore[method-assign]
            kill_and_wait(deployment, "w2")
            commit(*args)  # type: ignore[arg-type]

        publisher.commit = too_late  # type: ignore[method-assign]
        with pytest.raises(WorkerLost, match="w2 died after it had loaded"):
            carry_out(deployment, Move((0, expert), "w2", ""))
        assert holders_of(deployment.directory.current().placement) == before
        traffic.wait()
        settled(deployment, 3)
        carry_out(deployment, Move((0, expert), "w2", ""))
        traffic.wait()
        settled(deployment, 3)


@pytest.mark.parametrize("victim", ["w0", "w2"])
def test_a_worker_killed_while_the_old_is_retired(
    tiny_mixtral: Path, expected: list[Answer], victim: str
) -> None:
    """The new placement is in force already; the change is done."""
    with deployed(tiny_mixtral, 3, replicas=2) as deployment, Traffic(deployment, expected) as traffic:
        at_step(deployment, "retire", lambda step: kill_and_wait(deployment, victim))
        carry_out(deployment, Drain("w1"))
        assert deployment.worker_names == ["w0", "w2"]
        traffic.wait()
        settled(deployment, 2)
        carry_out(deployment, Drain("w1", undo=True))
        traffic.wait()
        settled(deployment, 3)


def test_the_worker_that_is_drained_dies_meanwhile(tiny_mixtral: Path, expected: list[Answer]) -> None:
    with deployed(tiny_mixtral, 3) as deployment, Traffic(deployment, expected) as traffic:
        at_step(deployment, "prepare", lambda step: kill_and_wait(deployment, "w1"))
        carry_out(deployment, Drain("w1"))
        assert deployment.worker_names == ["w0", "w2"]
        traffic.wait()
        settled(deployment, 2)


def test_a_sole_holder_dies_during_a_change_of_others(
    tiny_mixtral: Path, expected: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change gives way to the rescue of what was lost, then goes on."""
    stalled, go_on = threading.Event(), threading.Event()

    def load(*args: Any, cancellation: Cancellation, **options: Any) -> None:
        if options["yielding"] and not go_on.is_set():  # the change that was asked for: it is slow
            stalled.set()
            while not go_on.wait(0.01):
                if cancellation._cancelled:
                    raise Cancelled("called off")
        load_experts(*args, cancellation=cancellation, **options)

    monkeypatch.setattr(transaction, "load_experts", load)
    with deployed(tiny_mixtral, 4) as deployment, Traffic(deployment, expected) as traffic:
        assert deployment.manager is not None
        ticket = deployment.manager.submit(Move((0, 0), "w3", "w0"), WAIT_S)
        assert stalled.wait(WAIT_S)
        kill_and_wait(deployment, "w1")
        eventually(lambda: "w1" not in copies_now(deployment), 20.0, "w1's experts are loaded by others")
        traffic.wait()
        assert holders_of(deployment.directory.current().placement)[0][0] == ("w0",)
        go_on.set()
        assert list(ticket.steps(WAIT_S))[-1] is not None
        assert holders_of(deployment.directory.current().placement)[0][0] == ("w3",)
        traffic.wait()
        eventually(lambda: "w1" in copies_now(deployment), 30.0, "its experts are back")
        traffic.wait()
        settled(deployment, 4)


def test_who_hangs_is_not_waited_for_in_a_rescue(tiny_mixtral: Path, expected: list[Answer]) -> None:
    with deployed(tiny_mixtral, 4) as deployment, Traffic(deployment, expected) as traffic:
        traffic.wait()
        stopped = pid_of(deployment, "w3")
        os.kill(stopped, signal.SIGSTOP)
        kill_and_wait(deployment, "w1")
        took = eventually(lambda: "w1" not in copies_now(deployment), 20.0, "w0 and w2 load w1's experts")
        placement = holders_of(deployment.directory.current().placement)
        os.kill(stopped, signal.SIGCONT)
        assert took < 5.0
        assert copies(placement) == {"w0": 9, "w2": 9, "w3": 6}
        traffic.wait()
        settled(deployment, 4)


def copies_now(deployment: Deployment) -> dict[str, int]:
    return dict(copies(holders_of(deployment.directory.current().placement)))


def refuse_loads(deployment: Deployment, name: str, times: int) -> None:
    endpoint = deployment.directory.current().endpoints[name]
    fault = faults_pb2.Fault(kind=faults_pb2.Fault.KIND_REFUSE_LOAD, probability=1.0, most=times)
    with endpoint.security.open(endpoint.target, channel_options()) as channel:
        stub: faults_pb2_grpc.FaultsStub = faults_pb2_grpc.FaultsStub(channel)
        stub.SetFaults(faults_pb2.SetFaultsRequest(faults=[fault]), timeout=5)


def test_a_refused_load(tiny_mixtral: Path, expected: list[Answer]) -> None:
    cluster = ClusterOptions(allow_faults=True)
    with (
        deployed(tiny_mixtral, 3, cluster=cluster) as deployment,
        Traffic(deployment, expected) as traffic,
    ):
        before = deployment.directory.current().placement
        refuse_loads(deployment, "w2", 1)
        with pytest.raises(ColibriError, match="refused, on purpose"):
            carry_out(deployment, Drain("w1"))
        assert deployment.directory.current().placement is before
        assert deployment.worker_names == ["w0", "w1", "w2"]
        assert deployment.manager is not None
        assert "refused, on purpose" in deployment.manager.view().last_error
        traffic.wait()
        settled(deployment, 3)  # what w0 had loaded is dropped again
        carry_out(deployment, Drain("w1"))
        traffic.wait()
        settled(deployment, 2)


def test_too_little_memory(tiny_mixtral: Path, expected: list[Answer]) -> None:
    """24 experts; each worker may hold 12, so that two hold all and one cannot."""
    with deployed(tiny_mixtral, 1) as one:
        expert_bytes = statuses(one)[0].weight_bytes // 24
    cluster = ClusterOptions(memory=12 * expert_bytes)
    with deployed(tiny_mixtral, 2, cluster=cluster) as deployment, Traffic(deployment, expected) as traffic:
        needs, has = (
            f"need room for 24 .{24 * expert_bytes} bytes.",
            f"room for 12 .{12 * expert_bytes} bytes",
        )
        with pytest.raises(OverBudget, match=f"{needs}, and the workers have {has}"):
            carry_out(deployment, Drain("w1"))
        traffic.wait()
        settled(deployment, 2)
        carry_out(deployment, Scale(3))
        carry_out(deployment, Drain("w1"))
        traffic.wait()
        settled(deployment, 2)


def test_a_worker_that_does_not_start(tiny_mixtral: Path, expected: list[Answer]) -> None:
    with deployed(tiny_mixtral, 2) as deployment, Traffic(deployment, expected) as traffic:
        launcher = deployment.launcher
        assert launcher is not None
        source = launcher._source
        assert isinstance(source, Subprocesses)
        options = source._options
        source._options = replace(options, backend="nonsense")
        with pytest.raises(WorkerLost, match=r"worker w2 .* before it was ready"):
            carry_out(deployment, Scale(4))
        eventually(lambda: deployment.worker_names == ["w0", "w1"], 20.0, "the others are let go")
        traffic.wait()
        source._options = options
        carry_out(deployment, Scale(3))
        traffic.wait()
        settled(deployment, 3)


def test_a_change_that_is_not_done_in_time(tiny_mixtral: Path, expected: list[Answer]) -> None:
    with deployed(tiny_mixtral, 3, replicas=2) as deployment, Traffic(deployment, expected) as traffic:
        before = deployment.directory.current().placement
        with pytest.raises(DeadlineExpired, match="w3 did not come up in time"):
            carry_out(deployment, Scale(4), timeout_s=0.05)
        assert deployment.directory.current().placement is before
        eventually(lambda: deployment.worker_names == ["w0", "w1", "w2"], 20.0, "w3 is let go")
        stopped = pid_of(deployment, "w2")
        os.kill(stopped, signal.SIGSTOP)
        try:
            with pytest.raises(DeadlineExpired):
                carry_out(deployment, Drain("w1"), timeout_s=1.0)
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert deployment.directory.current().placement is before
        traffic.wait()
        settled(deployment, 3)
        carry_out(deployment, Drain("w1"))
        traffic.wait()
        settled(deployment, 2)


def test_the_end_of_the_deployment_takes_changes_back(tiny_mixtral: Path) -> None:
    with deployed(tiny_mixtral, 2) as deployment:
        manager = deployment.manager
        assert manager is not None
        tickets = [manager.submit(Scale(4)), manager.submit(Scale(3))]
        manager.close()
        for ticket in tickets:
            with pytest.raises(ShuttingDown):
                list(ticket.steps(WAIT_S))
        with pytest.raises(ShuttingDown):
            manager.submit(Scale(3))


def test_a_load_can_be_called_off(tiny_mixtral: Path) -> None:
    """Also one that a stopped worker never begins."""
    with deployed(tiny_mixtral, 2) as deployment:
        endpoint = deployment.directory.current().endpoints["w0"]
        missing = sorted({(0, e) for e in range(8)} - held_experts(endpoint, 5.0))
        cancellation = Cancellation()
        os.kill(pid_of(deployment, "w0"), signal.SIGSTOP)
        try:
            timer = threading.Timer(0.2, cancellation.cancel)
            timer.start()
            with pytest.raises(Cancelled, match="worker w0"):
                load_experts(
                    endpoint, missing, 2, Deadline.after(30), lambda *_: None, cancellation=cancellation
                )
            timer.join()
        finally:
            os.kill(pid_of(deployment, "w0"), signal.SIGCONT)
