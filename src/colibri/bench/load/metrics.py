"""Compute what the records of a run mean. Pure.

Latencies count from the scheduled time and come from whole answers; failures are counted by kind. Throughput
divides by the time from the start of the run to the end of its last answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from colibri.bench.load.distribution import PERCENTILES, Distribution, distribution
from colibri.bench.load.record import BOUND_EXCEEDED, STOPPED, Gap, RequestRecord
from colibri.bench.load.result import RunResult
from colibri.bench.load.slo import Slo, meets_all


@dataclass(frozen=True, slots=True)
class LargestGap:
    """The longest silence inside an answer, also one that failed later."""

    request: int
    gap: Gap


@dataclass(frozen=True, slots=True)
class Metrics:
    """The figures of a run.

    failed: by the target; `errors` counts them by kind, `messages` has one message per kind.
    unfinished: the run ended first.
    unsent: beyond the bound of requests in flight.
    total_input_tokens, total_output_tokens: of whole answers.
    good: requests that met all SLOs; None without SLOs.
    judged: requests that could have met them (all but the unfinished).
    """

    duration_s: float
    requests: int
    completed: int
    failed: int
    unfinished: int
    unsent: int
    resumed: int
    errors: Mapping[str, int]
    messages: Mapping[str, str]
    total_input_tokens: int
    total_output_tokens: int
    peak_tokens_per_s: float
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2el: Distribution | None
    largest_gap: LargestGap | None
    judged: int
    good: int | None

    @property
    def request_throughput(self) -> float:
        return self.completed / self.duration_s

    @property
    def request_goodput(self) -> float | None:
        return None if self.good is None else self.good / self.duration_s

    @property
    def output_throughput(self) -> float:
        return self.total_output_tokens / self.duration_s

    @property
    def total_token_throughput(self) -> float:
        return (self.total_input_tokens + self.total_output_tokens) / self.duration_s

    @property
    def good_share(self) -> float | None:
        """Of the judged requests; None without SLOs or requests."""
        return None if self.good is None or not self.judged else self.good / self.judged


def measure(
    result: RunResult, slos: Sequence[Slo] = (), percentiles: Sequence[float] = PERCENTILES
) -> Metrics:
    """percentiles: of each latency, 0 to 100."""
    records = result.records
    whole = [record for record in records if record.completed]
    failures = [record.failure for record in records if record.failure is not None]
    kinds = Counter(failure.kind for failure in failures)
    unfinished, unsent = kinds.pop(STOPPED, 0), kinds.pop(BOUND_EXCEEDED, 0)
    ttfts = (record.ttft for record in whole)
    tpots = (record.tpot for record in whole)
    return Metrics(
        duration_s=max(result.duration_s, 1e-9),
        requests=len(records),
        completed=len(whole),
        failed=kinds.total(),
        unfinished=unfinished,
        unsent=unsent,
        resumed=sum(record.resumes > 0 for record in records),
        errors=dict(kinds.most_common()),
        messages={failure.kind: failure.message for failure in reversed(failures) if failure.kind in kinds},
        total_input_tokens=sum(record.prompt_tokens for record in whole),
        total_output_tokens=sum(record.output_tokens for record in whole),
        peak_tokens_per_s=_peak_tokens_per_s(records, result.started),
        ttft=distribution((value for value in ttfts if value is not None), percentiles),
        tpot=distribution((value for value in tpots if value is not None), percentiles),
        itl=distribution((gap.seconds for record in whole for gap in record.gaps()), percentiles),
        e2el=distribution((record.e2el for record in whole), percentiles),
        largest_gap=largest_gap(records),
        judged=len(records) - unfinished,
        good=sum(meets_all(record, slos) for record in records) if slos else None,
    )


def largest_gap(records: Sequence[RequestRecord]) -> LargestGap | None:
    """None when no answer had two messages."""
    gaps = ((record.index, record.largest_gap()) for record in records)
    found = [LargestGap(index, gap) for index, gap in gaps if gap is not None]
    return max(found, key=lambda each: each.gap.seconds, default=None)


def _peak_tokens_per_s(records: Sequence[RequestRecord], started: float) -> float:
    """Most tokens that arrived in one second, counted from the start of the run."""
    seconds = Counter(int(at - started) for record in records for at in record.token_times)
    return float(max(seconds.values(), default=0))
