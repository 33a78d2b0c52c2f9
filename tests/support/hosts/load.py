"""Users who ask a cluster all the time while its hosts are broken, and what came of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from colibri.bench.chaos.operator import whats_missing
from colibri.bench.chaos.plan import LoadSpec
from colibri.bench.chaos.verdict import Gaps, gaps_between
from colibri.bench.chaos.workload import workload_of
from colibri.bench.expected import OracleSource, default_cache, expected_answers
from colibri.bench.load.arrivals import ClosedLoop
from colibri.bench.load.oracle import Judge, Oracle
from colibri.bench.load.record import STOPPED, RequestRecord
from colibri.bench.load.result import RunLimits
from colibri.bench.load.runner import LoadRun
from colibri.bench.load.targets.colibri_grpc import GrpcTarget
from colibri.client import Client
from colibri.errors import ColibriError
from tests.support.hosts.cluster import Cluster

_LOOK_S = 0.1
#: Until a gap that an event made must have ended: what fails later fails.
_SHOWS_S = 3.0


@dataclass(frozen=True, slots=True)
class Event:
    """seconds: from the event to the deployment being whole again, without anybody's help; gaps: between tokens of
    one answer, from the event on; quiet: before it."""

    name: str
    seconds: float
    quiet: Gaps
    gaps: Gaps


@dataclass(slots=True)
class Verdict:
    """failed, wrong: descriptions. answers: compared whole, receipt by receipt, with those of `--workers 0`."""

    events: list[Event] = field(default_factory=list)
    requests: int = 0
    answers: int = 0
    failed: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


class UnderLoad:
    """Made by `under_load`: the users ask until its context ends; `verdict` is whole then."""

    def __init__(self, cluster: Cluster, spec: LoadSpec, oracle: Oracle, run: LoadRun) -> None:
        self.verdict = Verdict()
        self._cluster = cluster
        self._spec = spec
        self._oracle = oracle
        self._run = run
        self._marks: list[tuple[str, float, float, float]] = []

    def quiet(self, seconds: float) -> float:
        """Returns when it began."""
        begun = time.monotonic()
        time.sleep(seconds)
        return begun

    def event(
        self,
        name: str,
        quiet_s: float,
        act: Callable[[], None],
        then: Callable[[], None],
        after_s: float,
        within_s: float,
    ) -> None:
        """act: breaks something; then: what the world does `after_s` seconds later, as a machine's own restart. Raises
        ColibriError when the deployment is not whole `within_s` seconds after the event."""
        began = self.quiet(quiet_s)
        at = time.monotonic()
        act()
        time.sleep(after_s)
        then()
        missing = wait_whole(self._cluster, at + within_s, lost_first=True)
        whole = time.monotonic()
        self._marks.append((name, began, at, whole))
        if missing:
            raise ColibriError(f"{name}: not whole after {within_s:g} s: {missing}")
        time.sleep(max(0.0, _SHOWS_S - (whole - at)))

    def judge(self, records: tuple[RequestRecord, ...]) -> None:
        report = self._oracle.judge_all(records)
        failures = [r.failure for r in records if r.failure is not None and r.failure.kind != STOPPED]
        self.verdict.requests = len(records)
        self.verdict.answers = report.answers
        self.verdict.failed = tuple(f"{failure.kind}: {failure.message}" for failure in failures)
        self.verdict.wrong = tuple(f"request {wrong.request}: {wrong.reason}" for wrong in report.wrong)
        for name, began, at, whole in self._marks:
            self.verdict.events.append(
                Event(name, whole - at, gaps_between(records, began, at), gaps_between(records, at, whole))
            )


@contextlib.contextmanager
def under_load(cluster: Cluster, model: Path, spec: LoadSpec, seed: int, cache: Path) -> Iterator[UnderLoad]:
    """cache: where expected answers are kept."""
    with Client(cluster.target, security=cluster.security) as client:
        info = client.model_info()
    workload = workload_of(spec, info, seed)
    judge = Judge(info.model_hash, info.engine_numerics_id, info.eos_ids)
    source = OracleSource(model, default_cache(cache, info.model_hash), "cpu")
    wanted = [workload.request(index) for index in range(spec.distinct)]
    oracle = expected_answers(source, judge, info.compute_mode, wanted)
    run = LoadRun(
        GrpcTarget(cluster.target, in_flight=spec.users, security=cluster.security),
        workload,
        ClosedLoop(spec.users),
        RunLimits(in_flight=spec.users, request_timeout_s=spec.request_timeout_s),
    )
    load = UnderLoad(cluster, spec, oracle, run)
    with run:
        yield load
        run.stop(spec.request_timeout_s)
        records = run.wait(spec.request_timeout_s + 30.0).records
    load.judge(tuple(records))


def wait_whole(cluster: Cluster, until: float, *, lost_first: bool = False) -> str:
    """Returns once all workers serve and are used, with what is missing at the time `until`. lost_first: something has
    just been broken, which must have shown."""
    missing, shown = "nothing was lost", not lost_first
    with cluster.operator() as operator:
        while time.monotonic() < until:
            try:
                now = whats_missing(operator.status(timeout_s=5.0))
            except ColibriError as error:
                now = error.message
            shown = shown or bool(now)
            missing = now if shown else "nothing was lost"
            if shown and not now:
                return ""
            time.sleep(_LOOK_S)
    return missing
