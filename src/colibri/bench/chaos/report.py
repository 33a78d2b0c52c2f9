"""A run and its verdict, as lines for people and as one JSON object. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from colibri.bench.chaos.plan import Action
from colibri.bench.chaos.runner import ChaosResult
from colibri.bench.chaos.verdict import Gaps, Verdict

_WORST = 5


def lines(result: ChaosResult, verdict: Verdict) -> list[str]:
    plan = result.plan
    found = [
        f"seed       {plan.seed}; {verdict.events} events: {_counts(result.events)}"
        + (f"; {verdict.failed_events} could not be" if verdict.failed_events else ""),
        f"requests   {verdict.requests}: {verdict.completed} answered, {verdict.failed} failed"
        + (f" {dict(verdict.failures)}" if verdict.failures else ""),
        f"oracle     {len(verdict.wrong)} wrong of {verdict.answers} answers, {verdict.tokens} tokens",
        f"gaps       quiet: {_gaps(verdict.quiet)}; among events: {_gaps(verdict.chaos)}",
        *(f"           {name}: {_gaps(gaps)}" for name, gaps in verdict.phases if len(verdict.phases) > 1),
        f"tokens/s   quiet {verdict.tokens_per_s_quiet:.1f}, among events {verdict.tokens_per_s_chaos:.1f}",
        f"workers    {result.lives} lives seen",
    ]
    if result.injected:
        found.append(f"injected   {_counts(result.injected)}")
    routing = ", ".join(f"{name} {value:g}" for name, value in result.routing.items() if value)
    found.append(f"router     {routing or 'nothing counted'}")
    worst = sorted(verdict.after, key=lambda after: -after.gap_s)[:_WORST]
    found += [f"           {after.gap_s * 1e3:6.0f} ms after {after.moment.text}" for after in worst]
    found += [f"NOT        {reason}" for reason in verdict.reasons]
    found.append("verdict    " + ("passed" if verdict.passed else "not passed"))
    return found


def document(result: ChaosResult, verdict: Verdict) -> dict[str, object]:
    """For machines: seconds and counts."""
    return {
        "seed": result.plan.seed,
        "passed": verdict.passed,
        "reasons": list(verdict.reasons),
        "requests": verdict.requests,
        "completed": verdict.completed,
        "failed": verdict.failed,
        "failures": dict(verdict.failures),
        "wrong": list(verdict.wrong),
        "answers_compared": verdict.answers,
        "tokens_compared": verdict.tokens,
        "quiet": _gap_fields(verdict.quiet),
        "chaos": _gap_fields(verdict.chaos),
        "phases": {name: _gap_fields(gaps) for name, gaps in verdict.phases},
        "tokens_per_s_quiet": verdict.tokens_per_s_quiet,
        "tokens_per_s_chaos": verdict.tokens_per_s_chaos,
        "events": {action.value: count for action, count in result.events.items()},
        "events_failed": verdict.failed_events,
        "injected": {action.value: count for action, count in result.injected.items()},
        "routing": dict(result.routing),
        "lives": result.lives,
        "incarnations_reused": list(result.reused),
        "gaps": [
            {"request": record.index, "largest_gap_s": gap.seconds, "at_s": gap.start - result.started}
            for record in result.records
            if (gap := record.largest_gap()) is not None
        ],
        "after_events": [
            {"at_s": after.moment.at_s, "what": after.moment.text, "largest_gap_s": after.gap_s}
            for after in verdict.after
        ],
        "timeline": [
            {
                "at_s": moment.at_s,
                "kind": moment.kind.value,
                "action": moment.action,
                "worker": moment.worker,
                "text": moment.text,
            }
            for moment in result.moments
        ],
        "resources": [{"at_s": at - result.started, **asdict(held)} for at, held in result.samples],
    }


def _gaps(gaps: Gaps) -> str:
    if not gaps.count:
        return "none"
    times = ((name, value * 1e3) for name, value in (("p50", gaps.p50_s), ("p99", gaps.p99_s)))
    listed = ", ".join(f"{name} {ms:.1f} ms" for name, ms in times)
    return f"{listed}, largest {gaps.largest_s * 1e3:.1f} ms (n {gaps.count})"


def _gap_fields(gaps: Gaps) -> dict[str, float]:
    return {"count": gaps.count, "p50_s": gaps.p50_s, "p99_s": gaps.p99_s, "largest_s": gaps.largest_s}


def _counts(counts: Mapping[Action, int]) -> str:
    return ", ".join(f"{count} {action.value}" for action, count in counts.items()) or "none"
