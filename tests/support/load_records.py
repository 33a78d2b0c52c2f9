"""Records of requests that were never sent: what the pure parts of the load harness are tested on."""

from __future__ import annotations

from collections.abc import Sequence

from colibri.bench.load.arrivals import ClosedLoop
from colibri.bench.load.record import Failure, RequestRecord
from colibri.bench.load.result import RunLimits, RunResult
from colibri.bench.load.workload import LoadRequest, SamplingSpec


def load_request(
    variant: int = 0, prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 4, seed: int = 9
) -> LoadRequest:
    return LoadRequest(variant, tuple(prompt), max_tokens, SamplingSpec(), seed)


def record(
    index: int = 0,
    *,
    scheduled: float = 100.0,
    sent: float | None = None,
    token_times: Sequence[float] = (),
    ended: float | None = None,
    ids: Sequence[int] | None = None,
    receipts: Sequence[int] | None = None,
    failure: Failure | None = None,
    request: LoadRequest | None = None,
    finish_reason: str = "length",
) -> RequestRecord:
    """Times absolute; ids and receipts: 0, 1, 2, ... where not given."""
    times = tuple(token_times)
    return RequestRecord(
        index=index,
        request=request or load_request(),
        scheduled=scheduled,
        sent=scheduled if sent is None else sent,
        accepted=None,
        token_times=times,
        ids=tuple(range(len(times)) if ids is None else ids),
        receipts=tuple(range(len(times)) if receipts is None else receipts),
        ended=ended if ended is not None else (times[-1] if times else scheduled),
        prompt_tokens=3,
        output_tokens=len(times),
        finish_reason=finish_reason,
        engine_numerics_id="",
        resumes=0,
        failure=failure,
    )


def run_result(
    records: Sequence[RequestRecord],
    *,
    started: float = 100.0,
    duration: float = 10.0,
    lateness: Sequence[float] = (0.001,),
    loop_cpu_s: float = 0.1,
) -> RunResult:
    return RunResult(
        arrivals=ClosedLoop(1),
        limits=RunLimits(),
        records=tuple(records),
        started=started,
        ended=started + duration,
        loop_lateness=tuple(lateness),
        loop_cpu_s=loop_cpu_s,
        process_cpu_s=2 * loop_cpu_s,
        peak_in_flight=1,
        stopped=False,
    )
