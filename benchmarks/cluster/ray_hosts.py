"""Three hosts on this machine (namespaces), the demo model cached on them, and the repository's own cluster.yaml.

The lines share one cluster: the first one that needs it brings it up, `down` takes it down.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from benchmarks.table import Line, Outcome
from colibri.bench.chaos.plan import LoadSpec
from colibri.client import Client
from colibri.coordinator.engine import EngineOptions
from colibri.deployment.assemble import assemble
from colibri.deployment.options import DeploymentOptions
from colibri.deployment.phases import Phases
from colibri.deployment.pinning import PinningOptions
from colibri.errors import ColibriError
from colibri.models.demo_model import build_demo_model
from colibri.models.home import colibri_home
from tests.support.hosts.cluster import Cluster, make_cluster
from tests.support.hosts.lab import Lab, hosts
from tests.support.hosts.load import under_load, wait_whole
from tests.support.hosts.needs import why_not
from tests.support.tiny_engine import ask, read

UP_TARGET_S = 90.0
GAP_TARGET_S = 0.4
PROMPTS = ((5, 9, 300, 42, 42, 7, 199, 23, 11), tuple(range(100, 164)), (1,))
TOKENS = 24
LOAD = LoadSpec(users=4, prompt_tokens=16, output_tokens=48, distinct=8)
SEED = 20261130
QUIET_S = 8.0
#: A machine's own restart; a cable that is plugged in again.
REBOOT_S, RECONNECT_S = 3.0, 8.0
BACK_S = 120.0
ROUNDS = 2
GONE_S = 60.0


def lines() -> list[Line]:
    return [
        Line(
            "ray-up",
            "`ray up cluster.yaml` on three hosts to the first token for an outside client, demo model cached",
            f"at most {UP_TARGET_S:g} s",
            ray_up,
        ),
        Line(
            "receipts",
            "receipts from 1, 2 and 3 hosts over Ray, and from as many local workers",
            "identical to --workers 0",
            receipts,
        ),
        Line(
            "host-kill",
            f"the init of a host killed under load, {ROUNDS} times, experts replicated",
            "0 failed, 0 wrong; gap at most quiet p99 ITL + 400 ms; whole again without an operator",
            lambda: _lose("killed", lambda lab, n: _killed(lab, n)),
        ),
        Line(
            "host-cut",
            f"the link of a host down under load, {ROUNDS} times, experts replicated",
            "0 failed, 0 wrong; gap at most quiet p99 ITL + 400 ms; whole again without an operator",
            lambda: _lose("cut off", lambda lab, n: _cut(lab, n)),
        ),
        Line(
            "down",
            "`colibri down`, and `ray down` alone",
            "nothing left on any host: processes, sockets, shared memory",
            down,
        ),
    ]


@dataclasses.dataclass(slots=True)
class _Shared:
    """The cluster of all lines, while there is one."""

    undo: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    cluster: Cluster | None = None
    up_s: float = 0.0


_shared = _Shared()
atexit.register(lambda: _shared.undo.close())


def ray_up() -> Outcome:
    lab, cluster = _hosts()
    begun = time.monotonic()
    phases = Phases()
    up = cluster.command("ray", "up", "-y", "--no-config-cache", "cluster.yaml")
    if up.code:
        raise ColibriError(f"ray up: {up.err[-500:]} {up.out[-500:]}")
    phases.mark("ray up returns")
    with Client(cluster.target, security=cluster.security) as client:
        _wait_ready(client, begun)
        phases.mark("serves")
        stream = client.generate(list(PROMPTS[0]), max_tokens=1, ignore_eos=True)
        stream.answer()
    phases.mark("first token")
    seconds = time.monotonic() - begun
    told = phases.lines() + [f"on the head: {line}" for line in _server_phases(cluster)]
    print("\n".join(f"   {line}" for line in told), file=sys.stderr)
    _shared.cluster, _shared.up_s = cluster, seconds
    marks = ", ".join(f"{name} {at:.1f} s" for name, at in phases.since_start().items())
    return Outcome(
        f"{seconds:.1f} s ({marks}; {len(lab.hosts)} hosts, mTLS)",
        seconds <= UP_TARGET_S,
        "",
        {"phases": phases.since_start(), "server": _server_phases(cluster)},
    )


def receipts() -> Outcome:
    cluster = _running()
    model = _model()
    expected = _local(model, 0)
    same: dict[str, bool] = {}
    for workers in (1, 2, 3):
        same[f"local {workers}"] = _local(model, workers) == expected
    for count in (1, 2, 3):
        _redeploy(cluster, count)
        same[f"Ray {count}"] = _outside(cluster) == expected
    differ = [name for name, equal in same.items() if not equal]
    tokens = sum(len(digests) for digests in expected)
    return Outcome(
        f"{tokens} tokens of {len(PROMPTS)} answers: "
        + (f"different from {', '.join(differ)}" if differ else f"identical ({', '.join(same)})"),
        not differ,
        "",
        {"same": same},
    )


def down() -> Outcome:
    cluster = _running()
    done = cluster.command("colibri", "down", "cluster.yaml")
    left = _left(cluster)
    second = cluster.command("ray", "up", "-y", "--no-config-cache", "cluster.yaml")
    missing = wait_whole(cluster, time.monotonic() + UP_TARGET_S)
    begun = time.monotonic()
    cluster.command("ray", "down", "-y", "cluster.yaml")
    while (later := _left(cluster)) and time.monotonic() - begun < GONE_S:
        time.sleep(0.5)
    ray_s = time.monotonic() - begun
    _shared.undo.close()
    _shared.cluster = None
    good = not (done.code or left or second.code or missing or later)
    return Outcome(
        f"colibri down: {', '.join(left) or 'nothing left'} after {done.seconds:.1f} s; "
        f"ray down alone: {', '.join(later) or 'nothing left'} after {ray_s:.1f} s",
        good,
        "ray down leaves log_monitor and agents on workers",
        {"colibri_down": done.out.splitlines(), "again": missing},
    )


def _lose(
    name: str, act: Callable[[Lab, int], tuple[Callable[[], None], Callable[[], None], float]]
) -> Outcome:
    cluster = _running()
    with under_load(cluster, _model(), LOAD, SEED, colibri_home(os.environ)) as load:
        for number in range(ROUNDS):
            break_it, mend_it, after_s = act(cluster.lab, number)
            load.event(f"{name} {number}", QUIET_S, break_it, mend_it, after_s, BACK_S)
    verdict = load.verdict
    quiet = max(event.quiet.p99_s for event in verdict.events)
    gaps = [event.gaps.largest_s for event in verdict.events]
    over = max(gap - event.quiet.p99_s for gap, event in zip(gaps, verdict.events, strict=True))
    back = ", ".join(f"{event.seconds:.1f} s" for event in verdict.events)
    shown = [*verdict.failed[:3], *verdict.wrong[:3]]
    return Outcome(
        f"{verdict.answers} answers, {len(verdict.failed)} failed, {len(verdict.wrong)} wrong; largest gap "
        f"{max(gaps) * 1e3:.0f} ms, quiet p99 {quiet * 1e3:.0f} ms, so {over * 1e3:+.0f} ms; whole again after {back}"
        + (f"; {'; '.join(shown)}" if shown else ""),
        not verdict.failed and not verdict.wrong and over <= GAP_TARGET_S,
        "peers stall 0.3 to 64 s",
        {"gaps_s": gaps, "back_s": [event.seconds for event in verdict.events], "seed": SEED},
    )


def _killed(lab: Lab, number: int) -> tuple[Callable[[], None], Callable[[], None], float]:
    host = lab.workers[number % len(lab.workers)]
    return host.kill, host.boot, REBOOT_S


def _cut(lab: Lab, number: int) -> tuple[Callable[[], None], Callable[[], None], float]:
    host = lab.workers[number % len(lab.workers)]
    return lambda: lab.cut(host), lambda: lab.heal(host), RECONNECT_S


def _model() -> Path:
    return build_demo_model(colibri_home(os.environ))


def _hosts() -> tuple[Lab, Cluster]:
    if reason := why_not():
        raise RuntimeError(reason)
    lab = _shared.undo.enter_context(hosts(3, [_model()]))
    cluster = make_cluster(lab, _model(), {"kv-tokens": 8192})
    made = cluster.command("ray", "get-auth-token", "--generate")
    if made.code:
        raise ColibriError(f"ray get-auth-token: {made.err}")
    return lab, cluster


def _running() -> Cluster:
    if _shared.cluster is None:
        ray_up()
    if _shared.cluster is None:
        raise RuntimeError("the cluster is not up")
    if missing := wait_whole(_shared.cluster, time.monotonic() + BACK_S):
        raise ColibriError(f"the cluster is not whole: {missing}")
    return _shared.cluster


def _wait_ready(client: Client, begun: float) -> None:
    while True:
        try:
            client.wait_ready(2.0)
            return
        except ColibriError:
            if time.monotonic() - begun > 2 * UP_TARGET_S:
                raise


def _redeploy(cluster: Cluster, workers: int) -> None:
    """The server anew, with so many workers: on as many hosts, since each takes one."""
    options = yaml.safe_load((cluster.folder / "colibri.yaml").read_text())
    options["serve"] |= {"workers": workers, "replicas": min(2, workers)}
    text = yaml.safe_dump(options)
    (cluster.folder / "colibri.yaml").write_text(text)
    words = "RAY_AUTH_MODE=token colibri deploy"
    cluster.lab.head.run(f"{words} --stop")
    cluster.lab.head.run(
        f"cat > ~/colibri/colibri.yaml <<'EOF'\n{text}EOF\n{words} --config ~/colibri/colibri.yaml"
    )
    cluster.lab.head.run(f"{words} --follow --wait 100", timeout_s=120.0)


def _outside(cluster: Cluster) -> list[list[int]]:
    with Client(cluster.target, security=cluster.security) as client:
        return [
            list(client.generate(list(prompt), max_tokens=TOKENS, ignore_eos=True).answer().receipts)
            for prompt in PROMPTS
        ]


def _local(model: Path, workers: int) -> list[list[int]]:
    options = DeploymentOptions(
        model=model,
        workers=workers,
        replicas=min(2, max(1, workers)),
        engine=EngineOptions(kv_tokens=2048),
        pinning=PinningOptions(share=True),
    )
    with assemble(options, lambda line: None) as deployment:
        return [read(deployment.engine.submit(ask(prompt, TOKENS))).receipts for prompt in PROMPTS]


def _left(cluster: Cluster) -> list[str]:
    found = []
    for host in cluster.lab.hosts:
        files = host.run("ls -d /dev/shm/ray* /dev/shm/plasma* 2> /dev/null; true").split()
        found += [f"{host.name}: {what}" for what in [*host.processes(), *files]]
    return found


def _server_phases(cluster: Cluster) -> list[str]:
    return [line for line in cluster.log().splitlines() if re.fullmatch(r".* \d+\.\d+ s   at .*", line)]
