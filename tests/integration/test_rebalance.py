"""Rebalancing while requests run: hot experts of a skewed load get holders, the placement becomes level, and every
answer stays that of one process."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.client.operator import Operator
from colibri.cluster.experts.holders import held_by, holders_of
from colibri.cluster.placing.commands import Drain
from colibri.cluster.placing.planner.outcome import balance_of
from colibri.cluster.placing.planner.problem import Loads
from colibri.cluster.placing.rebalance_options import RebalanceMode, RebalanceOptions
from colibri.cluster.workers.expert_calls import held_experts
from colibri.deployment.cluster import ClusterOptions
from colibri.deployment.running import Deployment
from colibri.errors import InvalidInput
from colibri.rpc.server import build_server
from tests.support.clusters import deployed, eventually, kill, statuses
from tests.support.command import main
from tests.support.tiny_engine import Answer
from tests.support.traffic import Traffic, expected_answers

#: Few texts choose few experts: the load is skewed by itself.
USERS, TOKENS = 2, 48
WAIT_S = 60.0


@pytest.fixture(scope="module")
def expected(tiny_mixtral: Path) -> Iterator[list[Answer]]:
    with deployed(tiny_mixtral, 0) as oracle:
        yield expected_answers(oracle, USERS, TOKENS)


def options(mode: RebalanceMode, interval_s: float = 0.3) -> ClusterOptions:
    return ClusterOptions(rebalance=RebalanceOptions(mode, interval_s, min_rows=50))


def measured(deployment: Deployment) -> Loads:
    return tuple(tuple(row) for row in deployment.router.loads().astype(float).tolist())


def slowdown(deployment: Deployment) -> float:
    return balance_of(deployment.directory.current().placement, measured(deployment)).slowdown


def check_held(deployment: Deployment) -> None:
    def agree() -> bool:
        membership = deployment.directory.current()
        holders = holders_of(membership.placement)
        return all(
            held_experts(endpoint, 5.0) == held_by(holders, name)
            for name, endpoint in membership.endpoints.items()
        )

    eventually(agree, 20.0, "workers hold what the placement says")


def changes(deployment: Deployment) -> int:
    assert deployment.manager is not None
    view = deployment.manager.view().rebalance
    assert view is not None
    return view.changes


def test_a_skewed_load_is_levelled_online(tiny_mixtral: Path, expected: list[Answer]) -> None:
    with deployed(tiny_mixtral, 4, cluster=options(RebalanceMode.ON)) as deployment:
        first = deployment.directory.current().placement
        with Traffic(deployment, expected) as traffic:
            eventually(lambda: changes(deployment) > 0, WAIT_S, "it rebalances")
            traffic.wait()
            loads = measured(deployment)
            before = balance_of(first, loads).slowdown
            assert before > 1.15, "the load is skewed"
            eventually(lambda: slowdown(deployment) < 1.08, WAIT_S, "the placement is level")
            traffic.wait()
        placement = deployment.directory.current().placement
        assert placement.loads is not None
        assert any(
            len(parts) > 1 for layer in range(placement.layers) for parts in placement.division(layer)
        ), "hot experts are divided"
        check_held(deployment)
        # The same load again is nothing new.
        done = changes(deployment)
        with Traffic(deployment, expected) as traffic:
            traffic.wait()
            traffic.wait()
        assert changes(deployment) <= done + 1


def test_deaths_and_drains_among_divided_experts(tiny_mixtral: Path, expected: list[Answer]) -> None:
    with deployed(tiny_mixtral, 4, replicas=2, cluster=options(RebalanceMode.ON)) as deployment:
        assert deployment.manager is not None
        with Traffic(deployment, expected) as traffic:
            eventually(lambda: changes(deployment) > 0, WAIT_S, "it rebalances")
            for victim in statuses(deployment)[:2]:
                kill(victim.pid)
                traffic.wait()
                eventually(
                    lambda: len(deployment.directory.current().endpoints) == 4, 30.0, "the worker is back"
                )
            for _ in deployment.manager.submit(Drain("w1"), WAIT_S).steps(1.0):
                pass
            traffic.wait()
        check_held(deployment)


def test_off_and_shared_cpus_change_nothing(tiny_mixtral: Path, expected: list[Answer]) -> None:
    with deployed(tiny_mixtral, 4, cluster=options(RebalanceMode.OFF)) as deployment:
        with Traffic(deployment, expected) as traffic:
            for _ in range(4):
                traffic.wait()
        assert deployment.manager is not None
        view = deployment.manager.view().rebalance
        assert view is not None
        assert (view.mode, view.active, view.changes) == ("off", False, 0)
        assert deployment.directory.current().placement.epoch == 1
        assert sum(map(sum, measured(deployment))) > 0


def test_place_by_the_operator(
    tiny_mixtral: Path, expected: list[Answer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with deployed(tiny_mixtral, 3, cluster=options(RebalanceMode.OFF)) as deployment:
        service = deployment.operator("tiny").service()
        server = build_server([service], listen=f"unix:{tmp_path / 's'}", max_calls=4, name="test")
        server.start()
        try:
            with Operator(server.target) as operator, pytest.raises(InvalidInput, match="none yet"):
                operator.place(True, WAIT_S)
            with Traffic(deployment, expected) as traffic:
                traffic.wait()
                capsys.readouterr()
                assert main(["place", "--dry-run", "--json", "--target", server.target]) == 0
                plan = json.loads(capsys.readouterr().out)
                assert plan["after"]["slowdown"] < plan["before"]["slowdown"]
                assert plan["gain"] > 0
                assert plan["bytes"] > 0
                assert len(plan["loads"]) > 0
                assert deployment.directory.current().placement.epoch == 1, "nothing was moved"

                assert main(["status", "--loads", "--experts", "--json", "--target", server.target]) == 0
                (tmp_path / "loads.json").write_text(capsys.readouterr().out)
                assert main(["place", "--dry-run", "--from-file", str(tmp_path / "loads.json")]) == 0
                assert "copies to load" in capsys.readouterr().out

                before = slowdown(deployment)
                assert main(["place", "--target", server.target]) == 0
                assert "place: done, epoch 2" in capsys.readouterr().out
                traffic.wait()
                assert slowdown(deployment) < before
                assert main(["status", "--target", server.target]) == 0
                assert "rebalancing: off, now off" in capsys.readouterr().out
            check_held(deployment)
        finally:
            server.stop(0)


def test_place_without_a_server_is_a_dry_run() -> None:
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        assert main(["place", "--from-file", "nowhere.json"]) == 1
    assert "--from-file: expected together with --dry-run" in err.getvalue()
