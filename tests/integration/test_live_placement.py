"""Changes of placement while requests run: every answer is that of one process, and nobody notices."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.cluster.experts.holders import copies, held_by, holders_of
from colibri.cluster.placing.commands import Command, Drain, Move, Scale
from colibri.cluster.placing.transaction import Step
from colibri.cluster.workers.expert_calls import held_experts
from colibri.deployment.running import Deployment
from colibri.errors import InvalidInput
from colibri.transport.link import LinkKind
from tests.support.clusters import deployed, eventually, is_alive, kill, statuses
from tests.support.tiny_engine import Answer
from tests.support.traffic import Traffic, expected_answers

USERS, TOKENS = 3, 48
WAIT_S = 60.0


@pytest.fixture(scope="module")
def expected(tiny_mixtral: Path) -> Iterator[list[Answer]]:
    with deployed(tiny_mixtral, 0) as oracle:
        yield expected_answers(oracle, USERS, TOKENS)


def carry_out(deployment: Deployment, command: Command) -> list[Step]:
    assert deployment.manager is not None
    return [step for step in deployment.manager.submit(command, WAIT_S).steps(1.0) if step is not None]


def check_held(deployment: Deployment) -> None:
    """Every living worker holds, by its own account, what the placement gives it and nothing else."""

    def agree() -> bool:
        membership = deployment.directory.current()
        holders = holders_of(membership.placement)
        return all(
            held_experts(endpoint, 5.0) == held_by(holders, name)
            for name, endpoint in membership.endpoints.items()
        )

    eventually(agree, 20.0, "workers hold what the placement says")


@pytest.mark.parametrize(
    ("replicas", "link"), [(1, LinkKind.GRPC), (2, LinkKind.SHARED_MEMORY), (2, LinkKind.GRPC)]
)
def test_scale_drain_and_undo(
    tiny_mixtral: Path, expected: list[Answer], replicas: int, link: LinkKind
) -> None:
    with deployed(tiny_mixtral, 2, replicas=replicas, link=link) as deployment:
        first = {status.name: status.pid for status in statuses(deployment)}
        with Traffic(deployment, expected) as traffic:
            steps = carry_out(deployment, Scale(4))
            assert [step.phase for step in steps if step.phase != "prepare"] == ["commit", "retire"]
            assert steps[0].text == "starting w2, w3"
            traffic.wait()
            assert deployment.worker_names == ["w0", "w1", "w2", "w3"]
            placement = deployment.directory.current().placement
            assert copies(holders_of(placement)) == dict.fromkeys(deployment.worker_names, 6 * replicas)
            check_held(deployment)

            carry_out(deployment, Drain("w1"))
            assert deployment.worker_names == ["w0", "w2", "w3"]
            assert not is_alive(first["w1"])
            traffic.wait()
            carry_out(deployment, Drain("w1", undo=True))
            assert statuses(deployment)[1].name == "w1"
            assert statuses(deployment)[1].pid != first["w1"]
            traffic.wait()
            carry_out(deployment, Scale(2))
            traffic.wait()
            check_held(deployment)
        names = [status.name for status in statuses(deployment)]
        assert names == ["w0", "w1"]
        assert statuses(deployment)[0].pid == first["w0"]
        assert statuses(deployment)[0].incarnation == 1
        assert statuses(deployment)[1].incarnation > 4
        assert deployment.directory.current().placement.epoch == 5
        assert all(status.deaths == 0 for status in statuses(deployment))


@pytest.mark.parametrize("seed", range(3))
def test_random_moves(tiny_mixtral: Path, expected: list[Answer], seed: int) -> None:
    draw = random.Random(seed)
    with deployed(tiny_mixtral, 3) as deployment, Traffic(deployment, expected) as traffic:
        for _ in range(20):
            placement = deployment.directory.current().placement
            expert = (draw.randrange(placement.layers), draw.randrange(placement.experts))
            holders = holders_of(placement)[expert[0]][expert[1]]
            others = [name for name in placement.workers if name not in holders]
            to = draw.choice(others) if others else ""
            source = draw.choice([*holders, ""]) if to else draw.choice(holders)
            carry_out(deployment, Move(expert, to, source))
            now = holders_of(deployment.directory.current().placement)[expert[0]][expert[1]]
            assert now == (*([to] if to else []), *(name for name in holders if name != source))
        traffic.wait()
        check_held(deployment)


def test_the_death_of_a_sole_holder_costs_no_request(tiny_mixtral: Path, expected: list[Answer]) -> None:
    """Survivors load what was lost, the worker comes back, and its experts return to it."""
    with deployed(tiny_mixtral, 3) as deployment, Traffic(deployment, expected) as traffic:
        before = holders_of(deployment.directory.current().placement)
        for _ in range(2):
            traffic.wait()
            victim = statuses(deployment)[1]
            kill(victim.pid)
            eventually(
                lambda: holders_of(deployment.directory.current().placement) != before,
                10.0,
                "survivors hold the lost experts",
            )
            traffic.wait()
            eventually(
                lambda: holders_of(deployment.directory.current().placement) == before,
                30.0,
                "the experts are back",
            )
            assert statuses(deployment)[1].incarnation > victim.incarnation
        traffic.wait()
        check_held(deployment)


def test_the_death_of_one_of_two_holders_changes_no_placement(
    tiny_mixtral: Path, expected: list[Answer]
) -> None:
    with deployed(tiny_mixtral, 3, replicas=2) as deployment, Traffic(deployment, expected) as traffic:
        traffic.wait()
        victim = statuses(deployment)[0]
        kill(victim.pid)
        traffic.wait()
        eventually(
            lambda: deployment.directory.current().endpoints.keys() == {"w0", "w1", "w2"},
            30.0,
            "it is back",
        )
        traffic.wait()
        assert deployment.directory.current().placement.epoch == 1
        check_held(deployment)


def test_all_but_one_die(tiny_mixtral: Path, expected: list[Answer]) -> None:
    with deployed(tiny_mixtral, 3, replicas=2) as deployment, Traffic(deployment, expected) as traffic:
        traffic.wait()
        for status in statuses(deployment)[:2]:
            kill(status.pid)
        traffic.wait()
        eventually(
            lambda: deployment.directory.current().endpoints.keys() == {"w0", "w1", "w2"},
            30.0,
            "they are back",
        )
        traffic.wait()
        check_held(deployment)


def test_what_cannot_be_changes_nothing(tiny_mixtral: Path) -> None:
    with deployed(tiny_mixtral, 2) as deployment:
        for command, message in (
            (Drain("w7"), "worker: expected one of w0, w1"),
            (Move((9, 0), "w1"), "layer: expected 0 to 2"),
            (Scale(0), "workers: expected 1 to 256"),
        ):
            with pytest.raises(InvalidInput, match=message):
                carry_out(deployment, command)
        carry_out(deployment, Drain("w0"))
        with pytest.raises(InvalidInput, match="the last one"):
            carry_out(deployment, Drain("w1"))
        assert deployment.worker_names == ["w1"]
        assert deployment.manager is not None
        assert deployment.manager.view().last_error == ""
