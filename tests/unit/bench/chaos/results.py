"""Runs made up by hand, for what judges and draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from colibri.bench.chaos.plan import Action, Limits, Phase, Plan
from colibri.bench.chaos.runner import ChaosResult
from colibri.bench.chaos.timeline import Moment, MomentKind
from colibri.bench.load.oracle import OracleReport
from colibri.bench.load.record import Failure, RequestRecord
from colibri.bench.load.workload import LoadRequest, SamplingSpec

#: On the run's clock; everything else counts from here.
START = 1000.0
GOOD = OracleReport(answers=10, partial=0, tokens=100, wrong=())


def record(index: int, times: Sequence[float], failure: str | None = None) -> RequestRecord:
    """times: of tokens, from START."""
    at = tuple(START + time for time in times)
    return RequestRecord(
        index=index,
        request=LoadRequest(0, (1, 2), len(times), SamplingSpec(), 0),
        scheduled=at[0] if at else START,
        sent=at[0] if at else START,
        accepted=None,
        token_times=at,
        ids=(1,) * len(at),
        receipts=(1,) * len(at),
        ended=at[-1] if at else START,
        prompt_tokens=2,
        output_tokens=len(at),
        finish_reason="length",
        engine_numerics_id="x",
        resumes=0,
        failure=None if failure is None else Failure(failure, "text"),
    )


def steady(index: int, begin: float, end: float, step: float) -> RequestRecord:
    count = int((end - begin) / step)
    return record(index, [begin + step * number for number in range(count)])


def moment(at: float, kind: MomentKind, action: str, worker: str = "w0", number: int | None = None) -> Moment:
    return Moment(START + at, at, kind, action, worker, f"{action} {worker}", number)


def result(records: Sequence[RequestRecord], limits: Limits | None = None, **changes: Any) -> ChaosResult:
    """Quiet for 10 s, then events for 20 s."""
    plan = Plan(1, 10.0, (Phase("kills", 20.0, ()),), limits=limits or Limits())
    fields: dict[str, Any] = {
        "plan": plan,
        "started": START,
        "quiet": (START, START + 10.0),
        "ended": START + 30.0,
        "moments": (),
        "records": tuple(records),
        "events": {Action.KILL: 2},
        "failed_events": 0,
        "injected": {},
        "routing": {"failovers": 2.0},
        "lives": 3,
        "reused": (),
        "samples": (),
        "problem": "",
    }
    return ChaosResult(**(fields | changes))
