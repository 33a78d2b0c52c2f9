"""What a run's records mean for its plan's limits. Pure."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from colibri.bench.chaos.plan import WARM_S
from colibri.bench.chaos.runner import ChaosResult
from colibri.bench.chaos.timeline import Moment, MomentKind
from colibri.bench.load.oracle import OracleReport
from colibri.bench.load.record import STOPPED, Gap, RequestRecord


@dataclass(frozen=True, slots=True)
class Gaps:
    """Silences between tokens of one answer, in seconds. largest: None when there were none."""

    count: int
    p50_s: float
    p99_s: float
    largest: Gap | None

    @property
    def largest_s(self) -> float:
        return 0.0 if self.largest is None else self.largest.seconds


@dataclass(frozen=True, slots=True)
class AfterEvent:
    """The largest gap of any answer that overlaps the time from one event to the next."""

    moment: Moment
    gap_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """reasons: why it is not passed; none: passed. failures: requests by kind of error; wrong: first
    differences, as the oracle words them; phases: gaps of each phase with events, in their order."""

    requests: int
    completed: int
    failures: Mapping[str, int]
    answers: int
    tokens: int
    wrong: tuple[str, ...]
    quiet: Gaps
    chaos: Gaps
    phases: tuple[tuple[str, Gaps], ...]
    events: int
    failed_events: int
    after: tuple[AfterEvent, ...]
    tokens_per_s_quiet: float
    tokens_per_s_chaos: float
    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.reasons

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def over_quiet_s(self) -> float:
        """The largest gap among events beyond the quiet p99."""
        return self.chaos.largest_s - self.quiet.p99_s

    @property
    def p99_ratio(self) -> float:
        return self.chaos.p99_s / self.quiet.p99_s if self.quiet.p99_s else math.inf


def judge(result: ChaosResult, oracle: OracleReport) -> Verdict:
    limits = result.plan.limits
    begin, quiet_end = result.quiet
    failures = Counter(
        record.failure.kind
        for record in result.records
        if record.failure is not None and record.failure.kind != STOPPED
    )
    quiet = gaps_between(result.records, begin + WARM_S, quiet_end)
    chaos = gaps_between(result.records, quiet_end, result.ended)
    wrong = tuple(f"request {wrong.request}: {wrong.reason}" for wrong in oracle.wrong)
    events = sum(result.events.values())
    verdict = Verdict(
        requests=len(result.records),
        completed=sum(record.completed for record in result.records),
        failures=dict(failures),
        answers=oracle.answers,
        tokens=oracle.tokens,
        wrong=wrong,
        quiet=quiet,
        chaos=chaos,
        phases=gaps_of_phases(result),
        events=events,
        failed_events=result.failed_events,
        after=after_events(result),
        tokens_per_s_quiet=_rate(result.records, begin + WARM_S, quiet_end),
        tokens_per_s_chaos=_rate(result.records, quiet_end, result.ended),
        reasons=(),
    )
    reasons = []
    if result.problem:
        reasons.append(f"the deployment did not come back: {result.problem}")
    if result.reused:
        reasons.append("incarnations were used again: " + ", ".join(result.reused))
    if verdict.failed > limits.failed:
        reasons.append(f"{verdict.failed} requests failed, {limits.failed} may: {dict(failures)}")
    if len(wrong) > limits.wrong:
        reasons.append(f"{len(wrong)} answers are wrong, {limits.wrong} may be; {wrong[0]}")
    if not oracle.answers:
        reasons.append("no answer could be compared")
    if events < limits.events:
        reasons.append(f"{events} events happened, {limits.events} must")
    if not quiet.count or not chaos.count:
        reasons.append("too few tokens to speak of gaps")
    elif limits.gap_over_quiet_s is not None and verdict.over_quiet_s > limits.gap_over_quiet_s:
        reasons.append(
            f"the largest gap is {verdict.over_quiet_s * 1e3:.0f} ms above the quiet p99 of"
            f" {quiet.p99_s * 1e3:.0f} ms, {limits.gap_over_quiet_s * 1e3:.0f} ms may be"
        )
    if quiet.count and limits.p99_over_quiet is not None and verdict.p99_ratio > limits.p99_over_quiet:
        reasons.append(
            f"the p99 of gaps is {verdict.p99_ratio:.2f} times the quiet one, {limits.p99_over_quiet:g} may be"
        )
    return replace(verdict, reasons=tuple(reasons))


def gaps_between(records: Iterable[RequestRecord], begin: float, end: float) -> Gaps:
    """Gaps that end in [begin, end)."""
    found = [gap for record in records for gap in record.gaps() if begin <= gap.start + gap.seconds < end]
    found.sort(key=lambda gap: gap.seconds)
    if not found:
        return Gaps(0, 0.0, 0.0, None)
    return Gaps(len(found), _quantile(found, 0.5), _quantile(found, 0.99), found[-1])


def gaps_of_phases(result: ChaosResult) -> tuple[tuple[str, Gaps], ...]:
    """A phase lasts from its first event to the next one's."""
    starts = [moment for moment in result.moments if moment.kind is MomentKind.PHASE][1:]
    ends = [*(moment.at for moment in starts[1:]), result.ended]
    return (
        tuple(
            (moment.action, gaps_between(result.records, moment.at, end))
            for moment, end in zip(starts, ends, strict=True)
        )
        if starts
        else ()
    )


def after_events(result: ChaosResult) -> tuple[AfterEvent, ...]:
    events = [moment for moment in result.moments if moment.kind is MomentKind.EVENT]
    starts = [moment.at for moment in events]
    largest = [0.0] * len(events)
    for record in result.records:
        for gap in record.gaps():
            first = bisect.bisect_right(starts, gap.start) - 1
            last = bisect.bisect_right(starts, gap.start + gap.seconds) - 1
            for index in range(max(first, 0), last + 1):
                largest[index] = max(largest[index], gap.seconds)
    return tuple(AfterEvent(moment, gap) for moment, gap in zip(events, largest, strict=True))


def _quantile(ascending: Sequence[Gap], q: float) -> float:
    return ascending[max(0, math.ceil(q * len(ascending)) - 1)].seconds


def _rate(records: Iterable[RequestRecord], begin: float, end: float) -> float:
    tokens = sum(begin <= at < end for record in records for at in record.token_times)
    return tokens / (end - begin) if end > begin else 0.0
