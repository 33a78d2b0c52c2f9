"""Lines that are one chaos plan each: the figures of its verdict, against the plan's own limits."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.failover.bystanders import COUNT, deaths_of_others
from benchmarks.table import Outcome
from colibri.bench.chaos.network.build import why_not
from colibri.bench.chaos.plan import Action
from colibri.bench.chaos.plan_file import read_plan
from colibri.bench.chaos.report import document, lines
from colibri.bench.chaos.resources import growth
from colibri.bench.chaos.run import model_folder, run_plan
from colibri.bench.chaos.runner import ChaosResult
from colibri.bench.chaos.verdict import Verdict
from colibri.models.model import default_mode, expert_bytes, open_model

PLANS = Path(__file__).resolve().parents[2] / "docs" / "chaos"
#: A coordinator's own memory may breathe by so much: buffers of grpc, freed arenas of malloc.
FLAT_BYTES = 16 << 20
#: grpc starts and ends polling threads and their descriptors as it pleases.
FLAT_COUNT = 4


def run(name: str) -> tuple[ChaosResult, Verdict]:
    plan = read_plan(PLANS / f"{name}.yaml")
    if plan.network is not None and (reason := why_not()):
        raise RuntimeError(reason)
    result, verdict = run_plan(plan)
    print("\n".join(f"   {line}" for line in lines(result, verdict)), file=sys.stderr)
    return result, verdict


def gaps(name: str) -> Outcome:
    """Failed, wrong, and the largest gap over the quiet p99."""
    result, verdict = run(name)
    worst = ", ".join(f"{phase} {gaps.largest_s * 1e3:.0f} ms" for phase, gaps in verdict.phases)
    return Outcome(
        f"{_answers(verdict)}; largest gap: {worst}; quiet p99 {verdict.quiet.p99_s * 1e3:.0f} ms, so"
        f" {verdict.over_quiet_s * 1e3:+.0f} ms ({_events(result)})",
        verdict.passed,
        "peers stall 0.3 to 64 s",
        document(result, verdict),
    )


def kill() -> Outcome:
    """`gaps`, and beside it what the death of as large a process of somebody else's does on this machine."""
    outcome = gaps("kill")
    plan = read_plan(PLANS / "kill.yaml")
    if plan.serve is None:
        raise RuntimeError("the plan serves a model")
    model = open_model(model_folder(plan.serve.model))
    experts = model.config.layers * model.config.experts * expert_bytes(model, default_mode(model))
    nbytes = experts * plan.serve.replicas // plan.serve.workers
    others = deaths_of_others(plan, nbytes)
    return replace(
        outcome,
        limit=f"{outcome.limit}; {COUNT} other processes of {nbytes / 1e6:.0f} MB killed instead:"
        f" {others.over_quiet_s * 1e3:+.0f} ms over {others.quiet.p99_s * 1e3:.0f} ms",
    )


def lone() -> Outcome:
    """No second holder: the gap is the load of what was lost, and only told."""
    result, verdict = run("lone")
    after = sorted(event.gap_s for event in verdict.after)
    median = after[len(after) // 2] if after else 0.0
    return Outcome(
        f"{_answers(verdict)}; gap {median:.2f} s median, {verdict.chaos.largest_s:.2f} s largest ({_events(result)})",
        verdict.passed,
        "",
        document(result, verdict),
    )


def replies() -> Outcome:
    """Each injected nonsense must be counted by the router, as a bad or as a late reply."""
    result, verdict = run("replies")
    injected, routing = result.injected, result.routing
    bad = sum(injected.get(kind, 0) for kind in (Action.CORRUPT, Action.TRUNCATE, Action.WRONG_SHAPE))
    twice, late = injected.get(Action.DUPLICATE, 0), injected.get(Action.LATE, 0)
    full = injected.get(Action.FULL_QUEUE, 0)
    counted = routing["bad_replies"] + routing["late_replies"]
    all_counted = counted >= bad + twice and routing["refusals"] >= full
    return Outcome(
        f"{_answers(verdict)}; {bad} bad, {twice} doubled, {late} late, {full} refused injected;"
        f" {routing['bad_replies']:g} bad, {routing['late_replies']:g} late, {routing['refusals']:g} refused counted"
        f" ({_events(result)})",
        verdict.passed and all_counted,
        "",
        document(result, verdict),
    )


def moves() -> Outcome:
    result, verdict = run("moves")
    return Outcome(
        f"{_answers(verdict)}; p99 ITL {verdict.chaos.p99_s * 1e3:.0f} ms = {verdict.p99_ratio:.2f}x quiet"
        f" ({_events(result)})",
        verdict.passed,
        "",
        document(result, verdict),
    )


def forever() -> Outcome:
    """What the coordinator holds at the end and at the start."""
    result, verdict = run("forever")
    grown = growth(result.samples)
    flat = bool(grown) and all(
        grown[name] <= FLAT_COUNT for name in ("fds", "sockets", "mapped", "threads", "shm_files", "children")
    )
    flat = flat and grown["anonymous_bytes"] <= FLAT_BYTES
    told = ", ".join(
        f"{name} {value:+.0f}"
        for name, value in grown.items()
        if name not in ("anonymous_bytes", "rss_bytes")
    )
    memory = grown.get("anonymous_bytes", 0.0) / (1 << 20)
    return Outcome(
        f"{_answers(verdict)}; {result.lives} lives, {len(result.reused)} ids reused; {told},"
        f" memory {memory:+.1f} MiB ({_events(result)})",
        verdict.passed and flat,
        f"at most {FLAT_COUNT} apart, {FLAT_BYTES >> 20} MiB",
        document(result, verdict),
    )


def _answers(verdict: Verdict) -> str:
    return f"{verdict.failed} failed, {len(verdict.wrong)} wrong of {verdict.requests} requests"


def _events(result: ChaosResult) -> str:
    counts = ", ".join(f"{count} {action.value}" for action, count in result.events.items())
    return f"{counts}; seed {result.plan.seed}"
