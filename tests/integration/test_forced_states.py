"""A live worker whose state is not what is wanted: put right, started anew or left out; requests do not notice.

States are forced by the workers' own calls, as whoever has the deployment's secret could make them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.cluster.experts.holders import held_by, holders_of
from colibri.cluster.operator.cluster_status import StatusSources, cluster_status
from colibri.cluster.workers.expert_calls import ask_status, held_experts, load_experts, retire_experts
from colibri.cluster.workers.launch import WorkerState, WorkerStatus
from colibri.deadline import Deadline
from colibri.deployment.cluster import ClusterOptions
from colibri.deployment.running import Deployment
from colibri.placement import WorkerEndpoint
from colibri.transport.link import LinkKind
from colibri.v1 import faults_pb2, faults_pb2_grpc
from tests.support.clusters import deployed, eventually, kill, statuses
from tests.support.tiny_engine import Answer
from tests.support.traffic import Traffic, expected_answers

USERS, TOKENS = 2, 48
EVERYTHING = [(layer, expert) for layer in range(3) for expert in range(8)]
FAR = 1 << 20  # as far as a worker lets its epochs move


@pytest.fixture(scope="module")
def expected(tiny_mixtral: Path) -> Iterator[list[Answer]]:
    with deployed(tiny_mixtral, 0) as oracle:
        yield expected_answers(oracle, USERS, TOKENS)


def endpoint(deployment: Deployment, name: str) -> WorkerEndpoint:
    return deployment.directory.current().endpoints[name]


def status(deployment: Deployment, name: str) -> WorkerStatus:
    return next(found for found in statuses(deployment) if found.name == name)


def as_wanted(deployment: Deployment, workers: int) -> None:
    """Every worker lives, holds what the placement gives it and nothing else, and serves the placement's epoch."""

    def agree() -> bool:
        membership = deployment.directory.current()
        holders = holders_of(membership.placement)
        return len(membership.endpoints) == workers and all(
            held_experts(found, 5.0) == held_by(holders, name)
            and ask_status(found.target, name, 5.0, security=found.security).epoch_min
            <= membership.placement.epoch
            for name, found in membership.endpoints.items()
        )

    eventually(agree, 30.0, "workers hold and serve what is wanted")


@pytest.mark.parametrize("link", [LinkKind.GRPC, LinkKind.SHARED_MEMORY])
def test_all_experts_and_epochs_of_each_worker_retired_by_somebody(
    tiny_mixtral: Path, expected: list[Answer], link: LinkKind
) -> None:
    lines: list[str] = []
    with (
        deployed(tiny_mixtral, 2, replicas=2, link=link, log=lines.append) as deployment,
        Traffic(deployment, expected) as traffic,
    ):
        for name in ("w0", "w1"):
            traffic.wait()
            retire_experts(endpoint(deployment, name), FAR, EVERYTHING, 5.0)
            as_wanted(deployment, 2)
            eventually(lambda name=name: status(deployment, name).mends >= 1, 5.0, "it is told")  # type: ignore[misc]
            traffic.wait()
            found = status(deployment, name)
            assert (found.state, found.deaths, found.reason) == (WorkerState.SERVING, 0, "")
            assert f"it serves epochs from {FAR} on, and the placement in force is 1" in found.last_mend
            assert "it does not hold 24 (0:0, 0:1, 0:2, 0:3 ...) of the 24 experts" in found.last_mend
            assert any(line.startswith(f"worker {name}: ") and "put right" in line for line in lines)


def test_sole_holders_that_lose_everything_cost_no_request(
    tiny_mixtral: Path, expected: list[Answer]
) -> None:
    with deployed(tiny_mixtral, 2) as deployment, Traffic(deployment, expected) as traffic:
        traffic.wait()
        for name in ("w0", "w1"):
            retire_experts(endpoint(deployment, name), FAR, EVERYTHING, 5.0)
        as_wanted(deployment, 2)
        traffic.wait()
        assert [found.deaths for found in statuses(deployment)] == [0, 0]


def test_experts_that_nobody_asked_for_are_dropped(tiny_mixtral: Path, expected: list[Answer]) -> None:
    with deployed(tiny_mixtral, 2) as deployment, Traffic(deployment, expected) as traffic:
        for name in ("w0", "w1"):
            load_experts(endpoint(deployment, name), EVERYTHING, FAR, Deadline.after(30), lambda *_: None)
        as_wanted(deployment, 2)
        eventually(lambda: not any(found.surplus for found in statuses(deployment)), 10.0, "it is heard")
        traffic.wait()


def test_what_cannot_be_put_right_is_started_anew(tiny_mixtral: Path, expected: list[Answer]) -> None:
    lines: list[str] = []
    cluster = ClusterOptions(allow_faults=True)
    with (
        deployed(tiny_mixtral, 2, replicas=2, cluster=cluster, log=lines.append) as deployment,
        Traffic(deployment, expected) as traffic,
    ):
        found = endpoint(deployment, "w1")
        fault = faults_pb2.Fault(kind=faults_pb2.Fault.KIND_REFUSE_LOAD, probability=1.0, most=100)
        with found.security.open(found.target, []) as channel:
            stub: faults_pb2_grpc.FaultsStub = faults_pb2_grpc.FaultsStub(channel)
            stub.SetFaults(faults_pb2.SetFaultsRequest(faults=[fault]), timeout=5)
        retire_experts(found, 0, EVERYTHING[:5], 5.0)
        eventually(lambda: status(deployment, "w1").deaths == 1, 30.0, "it is started anew")
        as_wanted(deployment, 2)
        traffic.wait()
        assert "it does not hold 5 (0:0, 0:1, 0:2, 0:3 ...)" in status(deployment, "w1").last_error
        assert status(deployment, "w1").incarnation > found.incarnation
        tries = [line for line in lines if "could not be put right" in line]
        assert len(tries) == 3
        assert "refused, on purpose" in tries[0]


def test_who_comes_back_with_another_model_stays_out_and_says_why(
    tiny_mixtral: Path, tmp_path: Path, expected: list[Answer]
) -> None:
    """Also for as long as it goes on; once the model is put back, so is the worker."""
    model, kept, lines = tmp_path / "model", tmp_path / "kept", list[str]()
    shutil.copytree(tiny_mixtral, model)
    with (
        deployed(model, 2, replicas=2, log=lines.append) as deployment,
        Traffic(deployment, expected) as traffic,
    ):
        shutil.copytree(model, kept)
        [file] = model.glob("*.safetensors")
        data = bytearray(file.read_bytes())
        data[-64:] = bytes(64)
        file.write_bytes(data)
        kill(status(deployment, "w1").pid)
        eventually(lambda: status(deployment, "w1").deaths >= 2, 30.0, "its next life is refused")
        found = status(deployment, "w1")
        assert found.state is not WorkerState.SERVING
        assert "does not fit this deployment: model_hash: expected " in found.reason
        assert any("model_hash: expected " in line and "starting it again" in line for line in lines)
        traffic.wait()
        remote = deployment.operator("m")._sources
        assert isinstance(remote, StatusSources)
        shown = {info.name: info for info in cluster_status(remote, False, False, lambda: 0.0).workers}
        assert "model_hash: expected " in shown["w1"].reason
        assert shown["w1"].health_reason
        assert shown["w0"].reason == shown["w0"].health_reason == ""
        shutil.copy(kept / file.name, file)
        as_wanted(deployment, 2)
        eventually(lambda: status(deployment, "w1").state is WorkerState.SERVING, 30.0, "it is back")
        assert status(deployment, "w1").reason == ""
        traffic.wait()
