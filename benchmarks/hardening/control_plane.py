"""Processes of a cluster's control plane killed under load: Ray's own, and the coordinator.

Three hosts on this machine (namespaces), the repository's own cluster.yaml, replicas 2, four users.
`COLIBRI_TEST_KILLS`: kills of each (5). `COLIBRI_TEST_PARTS`: which, with commas between (all).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.table import Line, Outcome
from colibri.client import Retry
from colibri.errors import ColibriError
from colibri.models.demo_model import build_demo_model
from colibri.models.home import colibri_home
from tests.support.clusters import answer, deployed
from tests.support.hosts.cluster import Cluster, make_cluster
from tests.support.hosts.control_plane import COORDINATOR, PARTS, Expected, Kill, Part, Users, kill_part
from tests.support.hosts.lab import hosts
from tests.support.hosts.needs import why_not

KILLS = 5
USERS = 4
TOKENS = 32
PROMPTS = ((5, 9, 300, 42, 42, 7, 199, 23, 11), tuple(range(100, 164)), (1,))
BACK_S = 15.0
#: Bounds of waits on a busy machine, not targets.
UP_S, WITHIN_S = 400.0, 300.0
QUIET_S = 2.0


def lines() -> list[Line]:
    return [
        Line(
            "control-plane",
            f"GCS, raylets, dashboard, autoscaler, coordinator killed {KILLS} times each; {USERS} users, replicas 2",
            f"0 wrong; 0 failed but for the coordinator, which is back within {BACK_S:g} s with the same workers, and "
            "clients with retry go on",
            control_plane,
        )
    ]


def control_plane() -> Outcome:
    if reason := why_not():
        return Outcome("not measured", met=True, waived=reason)
    wanted = os.environ.get("COLIBRI_TEST_PARTS", "")
    parts = [part for part in PARTS if not wanted or part.name in wanted.split(",")]
    kills = int(os.environ.get("COLIBRI_TEST_KILLS", KILLS))
    model = build_demo_model(colibri_home(os.environ))
    expected = expected_answers(model)
    with hosts(3, [model]) as lab:
        cluster = make_cluster(lab, model, {"kv-tokens": 8192})
        for words in (
            ("ray", "get-auth-token", "--generate"),
            ("colibri", "up", "cluster.yaml", "--wait", f"{UP_S:g}"),
        ):
            done = cluster.command(*words, timeout_s=UP_S + 60.0)
            if done.code:
                raise ColibriError(f"{' '.join(words)}: {done.err[-500:]}")
        found = [measured(cluster, expected, part, kills) for part in parts]
        cluster.command("colibri", "down", "cluster.yaml")
    told = [text for text, _ in found]
    return Outcome("; ".join(told), all(met for _, met in found), "", {"parts": told})


def expected_answers(model: Path) -> Expected:
    with deployed(model, 0) as oracle:
        return {prompt: answer(oracle, prompt, TOKENS).receipts for prompt in PROMPTS}


def measured(cluster: Cluster, expected: Expected, part: Part, kills: int) -> tuple[str, bool]:
    """(what came of it, whether that is as it must be)"""
    users = Users(cluster, expected, USERS, Retry(within_s=WITHIN_S) if part is COORDINATOR else None)
    done: list[Kill] = []
    late = ""
    try:
        for _ in range(kills):
            time.sleep(QUIET_S)
            done.append(kill_part(cluster, part, WITHIN_S))
    except ColibriError as error:
        late = error.message
    finally:
        verdict = users.stop()
    workers = len(cluster.lab.hosts)
    same = sum(kill.same for kill in done)
    serves_s = max((kill.serves_s for kill in done), default=0.0)
    met = (
        not late
        and not verdict.failed
        and not verdict.wrong
        and same == workers * kills
        and serves_s <= BACK_S
    )
    text = (
        f"{part.name} x{kills}: {verdict.answers} answers, {len(verdict.failed)} failed, {len(verdict.wrong)} wrong, "
        f"{same} of {workers * kills} workers the same, actors again after at most "
        f"{max((kill.whole_s for kill in done), default=0.0):.0f} s"
        + (f", answers again after at most {serves_s:.1f} s" if part is COORDINATOR else "")
        + (f" ({verdict.failed[0]})" if verdict.failed else "")
        + (f"; kill {len(done) + 1}: {late[:300]}" if late else "")
    )
    return text, met
