"""Processes of the control plane killed while users ask: Ray's own on the head and on a host, and the coordinator."""

from __future__ import annotations

import itertools
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from colibri.client import Client, Retry
from colibri.errors import ColibriError
from tests.support.hosts.cluster import Cluster
from tests.support.hosts.host import Host
from tests.support.hosts.load import wait_whole

#: (prompt, its answer's receipts)
Expected = Mapping[tuple[int, ...], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Part:
    """pattern: as pgrep takes it, which must not match itself. on_head: else on a host with a worker alone. again: how
    many workers must have been taken over by new actors until all is as before."""

    name: str
    pattern: str
    on_head: bool = True
    again: int = 3


GCS = Part("GCS", "-x gcs_server")
#: Not its keeper, whose command line ends with the server's.
COORDINATOR = Part("coordinator", "-f '^[^ ]+ -P -m colibri.cli.main [s]erve '", again=3)
PARTS = (
    GCS,
    Part("raylet of the head", "-x raylet"),
    Part("raylet of a host", "-x raylet", on_head=False, again=1),
    Part("dashboard", "-f 'dashboard/[d]ashboard.py'"),
    Part("autoscaler", "-f '_private/[m]onitor.py'"),
    COORDINATOR,
)
_ACTOR_AGAIN = "is taken over by a new actor"
_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class Kill:
    """same: workers with the pid and incarnation that they had before. serves_s: until the coordinator answered again
    (0: it never stopped); whole_s: until all workers had actors again."""

    part: str
    same: int
    serves_s: float
    whole_s: float


@dataclass(slots=True)
class Verdict:
    """answers: compared, receipt by receipt, with those of `--workers 0`."""

    answers: int = 0
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Users:
    """Ask without a pause, until `stop`."""

    def __init__(self, cluster: Cluster, expected: Expected, count: int, retry: Retry | None) -> None:
        self.verdict = Verdict()
        self._cluster = cluster
        self._expected = expected
        self._retry = retry
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> Verdict:
        self._stopping.set()
        for thread in self._threads:
            thread.join(120.0)
        return self.verdict

    def _ask(self, first: int) -> None:
        prompts = list(self._expected)
        with Client(self._cluster.target, security=self._cluster.security, retry=self._retry) as client:
            for number in itertools.count(first):
                if self._stopping.is_set():
                    return
                prompt = prompts[number % len(prompts)]
                wanted = list(self._expected[prompt])
                try:
                    stream = client.generate(list(prompt), max_tokens=len(wanted), ignore_eos=True)
                    found = list(stream.answer().receipts)
                except ColibriError as error:
                    with self._lock:
                        self.verdict.failed.append(error.message)
                    self._stopping.wait(0.2)
                    continue
                with self._lock:
                    self.verdict.answers += 1
                    if found != wanted:
                        self.verdict.wrong.append(f"{prompt[:4]}...")


def kill_part(cluster: Cluster, part: Part, within_s: float) -> Kill:
    """SIGKILL, while all works; returns when all is as before. Raises ColibriError when it is not in time."""
    host = cluster.lab.head if part.on_head else cluster.lab.workers[0]
    before, said = workers_of(cluster), len(cluster.log())
    victim = pids(host, part)
    if not victim:
        raise ColibriError(f"{part.name}: no such process on {host.name}")
    at = time.monotonic()
    host.run(f"kill -9 {' '.join(map(str, victim))}")
    serves_s = _serves(cluster, at, at + within_s) if part is COORDINATOR else 0.0
    while (again := cluster.log()[said:].count(_ACTOR_AGAIN)) < part.again:
        if time.monotonic() > at + within_s:
            raise ColibriError(
                f"{part.name}: {again} of {part.again} workers have an actor again after {within_s:g} s: "
                f"{cluster.log()[said:][-1500:]}"
            )
        time.sleep(_LOOK_S)
    whole_s = time.monotonic() - at
    if missing := wait_whole(cluster, at + within_s):
        raise ColibriError(f"{part.name}: not whole after {within_s:g} s: {missing}")
    after = workers_of(cluster)
    same = sum(after.get(name) == life for name, life in before.items())
    return Kill(part.name, same, serves_s, whole_s)


def pids(host: Host, part: Part) -> list[int]:
    return [int(pid) for pid in host.run(f"pgrep {part.pattern} || true").split()]


def workers_of(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """(pid, incarnation) by name."""
    with cluster.operator() as operator:
        return {worker.name: (worker.pid, worker.incarnation) for worker in operator.status().workers}


def _serves(cluster: Cluster, at: float, until: float) -> float:
    """Seconds since `at` until a coordinator answers."""
    time.sleep(0.2)
    while True:
        try:
            with Client(cluster.target, security=cluster.security) as client:
                client.wait_ready(2.0)
            return time.monotonic() - at
        except ColibriError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def head_says(cluster: Cluster) -> str:
    """What the keeper of the head's Ray has said."""
    return cluster.lab.head.run(f"cat {shlex.quote('.cache/colibri/logs/ray.log')} || true")
