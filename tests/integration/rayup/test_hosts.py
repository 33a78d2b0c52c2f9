"""`ray up cluster.yaml` on three hosts: it serves, hosts are lost under load and come back, nothing is left.

The repository's own files; another model, addresses and keys. Hosts are namespaces, so this needs root.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.bench.chaos.plan import LoadSpec
from colibri.client import Client, Retry
from tests.support.clusters import PROMPT, answer, deployed
from tests.support.hosts.cluster import Cluster, make_cluster
from tests.support.hosts.control_plane import COORDINATOR, GCS, Expected, Users, kill_part
from tests.support.hosts.lab import hosts
from tests.support.hosts.load import under_load, wait_whole

pytestmark = [pytest.mark.rayup, pytest.mark.timeout(400)]

TOKENS = 24
LOAD = LoadSpec(users=4, prompt_tokens=12, output_tokens=32, distinct=6)
#: Bounds of waits, not measurements: benchmarks/cluster has those.
UP_S, BACK_S, GONE_S = 180.0, 120.0, 60.0


@pytest.fixture(scope="module")
def cluster(tiny_mixtral: Path) -> Iterator[Cluster]:
    with hosts(3, [tiny_mixtral]) as lab:
        yield make_cluster(lab, tiny_mixtral, {"kv-tokens": 4096})


def left(cluster: Cluster) -> list[str]:
    return [process for host in cluster.lab.hosts for process in host.processes()]


def test_ray_up_alone_serves_and_lost_hosts_come_back(
    cluster: Cluster, tiny_mixtral: Path, tmp_path: Path
) -> None:
    made = cluster.command("ray", "get-auth-token", "--generate")
    assert made.code == 0, made.err
    up = cluster.command("ray", "up", "-y", "--no-config-cache", "cluster.yaml")
    assert up.code == 0, up.out[-3000:] + up.err[-3000:]
    assert not wait_whole(cluster, time.monotonic() + UP_S), cluster.log()

    with deployed(tiny_mixtral, 0) as oracle:
        expected = answer(oracle, PROMPT, TOKENS)
    with Client(cluster.target, security=cluster.security) as client:
        found = client.generate(list(PROMPT), max_tokens=TOKENS, ignore_eos=True).answer()
        assert list(found.ids) == expected.ids
        assert list(found.receipts) == expected.receipts

    said = cluster.command("ray", "exec", "cluster.yaml", "echo of $(hostname)")
    assert f"of {cluster.lab.head.name}" in said.out
    with cluster.operator() as operator:
        hosts_of_workers = {worker.target.rpartition(":")[0] for worker in operator.status().workers}
    assert hosts_of_workers == {host.address for host in cluster.lab.hosts}, "a worker on each host"

    killed, cut = cluster.lab.workers
    with under_load(cluster, tiny_mixtral, LOAD, 7, tmp_path) as load:
        load.event("killed", 2.0, killed.kill, killed.boot, 2.0, BACK_S)
        load.event("cut", 2.0, lambda: cluster.lab.cut(cut), lambda: cluster.lab.heal(cut), 6.0, BACK_S)
    assert load.verdict.failed == ()
    assert load.verdict.wrong == ()
    assert load.verdict.answers > 2 * LOAD.distinct

    down = cluster.command("ray", "down", "-y", "cluster.yaml")
    assert down.code == 0, down.out[-2000:]
    until = time.monotonic() + GONE_S
    while (processes := left(cluster)) and time.monotonic() < until:
        time.sleep(0.5)
    assert processes == []


def test_colibri_up_and_down(cluster: Cluster, tiny_mixtral: Path) -> None:
    up = cluster.command("colibri", "up", "cluster.yaml", "--json", "--wait", str(UP_S))
    assert up.code == 0, up.err
    ready = json.loads(up.out)
    assert ready["target"] == cluster.target
    assert "Ray runs on the head" in up.err
    assert "workers up" in up.err, "what the server says is told"

    again = cluster.lab.head.run(
        "RAY_AUTH_MODE=token colibri deploy --config ~/colibri/colibri.yaml 2>&1 || true"
    )
    assert "deployed here already" in again
    status = cluster.command("colibri", "status", "--target", cluster.target, "--json")
    assert [worker["state"] for worker in json.loads(status.out)["workers"]] == ["serving"] * 3

    # Neither Ray's end nor the coordinator's ends a worker, and neither is felt by who asks (again).
    with deployed(tiny_mixtral, 0) as oracle:
        expected: Expected = {PROMPT: answer(oracle, PROMPT, TOKENS).receipts}
    for part in (GCS, COORDINATOR):
        users = Users(cluster, expected, 2, Retry(within_s=UP_S) if part is COORDINATOR else None)
        try:
            assert kill_part(cluster, part, UP_S).same == 3, part.name
        finally:
            verdict = users.stop()
        assert (verdict.failed, verdict.wrong) == ([], []), part.name
        assert verdict.answers > 0

    down = cluster.command("colibri", "down", "cluster.yaml", "--json")
    assert down.code == 0, down.out + down.err
    assert json.loads(down.out) == {
        "left": {host.address: "nothing" for host in cluster.lab.hosts},
        "unseen": {},
    }
    assert left(cluster) == []
    for host in cluster.lab.hosts:
        assert (
            host.run("ls -d /dev/shm/ray* /dev/shm/plasma* /tmp/ray/session_*/sockets/* 2> /dev/null; true")
            == ""
        )
    assert os.listdir(cluster.folder), "the operator's own files stay"
